# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 14. Choosing the next token
#
# A forward pass ends in one score per token of the vocabulary. If the engine always takes the best token, the text
# repeats itself. If it draws from all tokens at random, the text is nonsense. A few rules lie between the two, and for
# each of them a GPU has to read a hundred thousand numbers, for every token of every user.
#
# ```mermaid
# flowchart LR
#     logits["logits"] --> penalties["penalties"] --> T["divide by T"] --> cut["top-k, top-p,<br/>min-p:<br/>a threshold"] --> noise["add noise"] --> argmax["argmax"] --> token["token"]
# ```
#
# $$\mathrm{token} = \operatorname{argmax}_v\; x_v + T\, g_v \qquad g_v = -\log(-\log u_v), \qquad \text{greedy: } T = 0$$
#
# $x_v$ is the logit of token $v$, $T$ the temperature, $u_v$ a random number between 0 and 1. Every choice ends in an
# argmax. Here it is as one kernel, one block per row:

# %%
import math

from numba import cuda, float32, int32

from minllm.runtime.kernel import kernel

THREADS = 64


@kernel
def argmax_kernel(logits, out):  # [rows, vocabulary], [rows]
    row, thread = cuda.blockIdx.x, cuda.threadIdx.x
    values = cuda.shared.array(THREADS, float32)
    tokens = cuda.shared.array(THREADS, int32)
    best, best_token = float32(-math.inf), int32(0)
    for token in range(thread, logits.shape[1], THREADS):  # best token of this thread
        if logits[row, token] > best:
            best, best_token = logits[row, token], int32(token)
    values[thread], tokens[thread] = best, best_token
    step = THREADS // 2
    while step > 0:  # a tree over the threads
        cuda.syncthreads()
        if thread < step:
            a, b = values[thread], values[thread + step]
            if b > a or (b == a and tokens[thread + step] < tokens[thread]):  # (1)!
                values[thread], tokens[thread] = b, tokens[thread + step]
        step //= 2
    if thread == 0:
        out[row] = tokens[0]


# %% [markdown]
# 1. The tie rule: of equal logits, the one with the lowest id wins.
#
# **What you will be able to do**
#
# - say what temperature, top-k, top-p, min-p and the penalties do to a distribution, and compute each by hand;
# - draw a token without a sum or a state, and find, without sorting, the tokens that a rule keeps;
# - count the bytes of each rule, and explain why a rule can take far longer than its bytes.
#
# You need [lesson 1](01_what_a_language_model_computes.py) for logits, [lesson 2](02_your_first_kernel.py) for
# kernels and [lesson 4](04_arithmetic_intensity_and_the_roofline.py) for the roofline. You need no GPU.
#
# ## Predict
#
# Llama-3 has a vocabulary of 128,256 tokens. The logits are float32, and there is one row of them.

# %% tags=["hide-input"]
from minllm.course import Prediction

guess = Prediction(
    greedy_bytes="How many bytes must be read to find the largest?",
    top_p_bytes="Top-p keeps the likeliest tokens until their probabilities reach 90 %, and draws one. "
    "How many bytes now?",
    top_p_over_greedy="By what factor does top-p take longer than greedy, on an H200?",
)
guess.ask()

# %% [markdown]
# ## What the model offers
#
# For the bundled model, the next token is rather certain after the first of these prompts, and uncertain after the
# second.

# %%
import numpy as np

from minllm import LLM, SamplingParams

llm = LLM(
    dtype="float32"
)  # the bundled model; on a GPU where there is one, else with NumPy
texts = {
    "sure": "    with open(path",
    "open": "for line in",
    "between": "import os\nimport",
}
ids = {name: llm.tokenizer.encode(text) for name, text in texts.items()}
logits = {
    name: llm.logits(tokens)[-1] for name, tokens in ids.items()
}  # [vocabulary] each
vocabulary = len(logits["sure"])


def softmax(x):
    """Probabilities of logits, over the last axis."""
    weights = np.exp(x.astype(np.float64) - x.max())
    return weights / weights.sum()


def likeliest(x, count):
    """The ids of the `count` largest, the lowest id first among equals."""
    return np.argsort(-x, kind="stable")[:count]


def piece(token):
    return repr(llm.tokenizer.decode([int(token)]))


# %% tags=["fold"]
from minllm.course import Bar, bars

bars(
    [
        Bar(
            piece(token),
            100 * softmax(logits[name])[token],
            f"after {texts[name]!r}",
            colour,
        )
        for colour, name in enumerate(("sure", "open"))
        for token in likeliest(logits[name], 7)
    ],
    unit="%",
    title="The seven likeliest next tokens, twice",
    caption=f"The bundled model, {vocabulary:,} tokens; the other {vocabulary - 7:,} "
    "share the rest.",
)

# %% [markdown]
# The **entropy** measures how open a choice is: $-\sum_v p_v \log_2 p_v$ bits. 1 bit is the toss of a coin, 3 bits are
# a die with eight sides, and 12 bits would be any of 4,096 tokens with equal probability.


# %% tags=["fold"]
def entropy(p):
    p = p[p > 0]
    return float(-(p * np.log2(p)).sum())


for name in texts:
    print(f"{name:8} {entropy(softmax(logits[name])):4.1f} bits after {texts[name]!r}")
assert entropy(softmax(logits["sure"])) + 4 < entropy(softmax(logits["open"]))

# %% [markdown]
# !!! tip "Takeaway"
#     The entropy of the probabilities says how open a choice is.
#
# ## Greedy: the largest
#
# Greedy decoding does not compute probabilities, because the largest logit has the largest probability. On a GPU,
# argmax is a tree reduction, as in the kernel at the top. A warp finds the largest of its 32 values in five steps; write
# them:

# %% tags=["hide-input"]
from minllm.course import show_exercises

show_exercises("sampling.argmax")

# %% [markdown]
# Why the tie rule? Two logits can be equal, and after rounding to 16 bits they often are. If the only rule is "larger
# wins", the first of the equal logits wins, and which one is first differs between a tree and a loop, and between
# different splits into blocks. With the tie rule, any order gives the same token:


# %%
def reduce_in(order, x, tie_rule):
    """The winner if candidates are compared in this order."""
    best = order[0]
    for token in order[1:]:
        if x[token] > x[best] or (tie_rule and x[token] == x[best] and token < best):
            best = token
    return int(best)


rng = np.random.default_rng(0)
x = np.float32([1, 3, 2, 3, 0, 3])  # tokens 1, 3 and 5 are equal
orders = [rng.permutation(6) for _ in range(200)]
without = {reduce_in(order, x, False) for order in orders}
with_rule = {reduce_in(order, x, True) for order in orders}
print(
    f"200 orders without a tie rule: winners {sorted(without)}; with it: "
    f"{sorted(with_rule)}"
)

rows, token_out = (
    np.stack(list(logits.values())).astype(np.float32),
    np.empty(3, np.int32),
)
argmax_kernel.simulate[3, THREADS](rows, token_out)  # the kernel from the top

# %% tags=["hide"]
assert without == {1, 3, 5} and with_rule == {1}

# %% tags=["hide"]
assert np.array_equal(token_out, rows.argmax(axis=1))

# %% [markdown]
# Now see the engine's:

# %% tags=["hide-input"]
from minllm.course import show_source
from minllm.kernels.sampling import argmax as argmax_file

show_source(
    argmax_file.argmax_parts_kernel,
    folded="The engine's kernel: a row over 32 blocks, 16 bytes per load",
    notes={
        "row = cuda.blockIdx.y": "Rows of the batch lie along one axis of the grid, parts of a row along the other.",
        "quad = load_quad": "Four neighbouring logits by one load of 16 bytes.",
        "x = nan_as_infinity": "A NaN says that the forward has overflowed: it counts as the largest of all, and the "
        "row gives -2 instead of a token.",
        "if x > best": "A thread's tokens come in rising order, so here a plain `>` keeps the lowest id.",
        "store_block_argmax": "Threads, then warps, with the tie rule: your exercise.",
    },
)

# %% [markdown]
# !!! tip "Takeaway"
#     Greedy is an argmax. A tie rule makes its result independent of the order.
#
# ## Temperature
#
# The logits are divided by $T$ before the softmax. Differences grow if $T < 1$, and shrink if $T > 1$. An example by
# hand: five tokens have the probabilities 8, 4, 2, 1, 1 sixteenths. At $T = 1/2$ each is squared: 64, 16, 4, 1, 1,
# divided by their sum 86. So the first goes from 50 % to 74 %. As $T$ goes to 0, the draw becomes greedy.
#
# <!-- aside: The same by code, and the entropy at each temperature -->

# %%
five = np.log(np.float32([8, 4, 2, 1, 1]))  # logits; their softmax is 8/16, 4/16, ...
print(np.round(100 * softmax(five), 1), "% at T = 1")
print(np.round(100 * softmax(five / 0.5), 1), "% at T = 1/2")

# %% tags=["hide"]
assert np.allclose(softmax(five / 0.5), np.array([64, 16, 4, 1, 1]) / 86)

# %% tags=["fold"]
from minllm.course import curves

temperatures = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0]
curves(
    {
        f"after {texts[name]!r}": [
            (t, entropy(softmax(logits[name] / t))) for t in temperatures
        ]
        for name in ("sure", "open")
    },
    "temperature",
    "entropy, bits",
    "The same logits, a more or less open choice",
    caption="The bundled model. Temperature 1 is the model as it was trained.",
)

# %% [markdown]
# <!-- end aside -->
#
# The next cell shows the effect on a text, from repetition to incoherence:

# %%
start = "class Stack:\n    def __init__(self):\n"
for temperature in (0.0, 0.5, 1.0, 1.5):
    (output,) = llm.generate(
        start, SamplingParams(temperature=temperature, seed=4, max_tokens=50)
    )
    lines = [line for line in output.outputs[0].text.splitlines() if line.strip()]
    print(f"--- T = {temperature}")
    print("\n".join(line[:100] for line in lines[:5]))

# %% [markdown]
# !!! tip "Takeaway"
#     A low temperature sharpens the distribution, a high one flattens it.
#
# ## Keep only the likely: top-k, top-p, min-p
#
# At $T = 1$ each of thousands of bad tokens has a tiny probability, but the sum is large, and one bad token spoils the
# text after it. So the tail is cut off. Three rules say where to cut:
#
# | rule | keeps | 8, 4, 2, 1, 1 sixteenths |
# | --- | --- | --- |
# | top-k = 2 | the k likeliest | 8, 4 |
# | top-p = 0.7 | the likeliest, until their sum reaches p | 8, 4: 8 alone is 0.5, and 12/16 is enough |
# | min-p = 0.2 | all with at least p times the largest probability | 8, 4, 2: 0.2 · 8 is 1.6 |
#
# Each rule keeps the likeliest tokens down to some limit. So each rule comes down to one number, a threshold on the
# logit. Together, top-p counts last, among the tokens that the other two leave.
#
# <!-- aside: The three thresholds in code -->

# %% tags=["hide-input"]
from minllm.kernels.sampling import thresholds as thresholds_file

show_source(
    thresholds_file._row_threshold,
    folded="The three thresholds in NumPy",
    notes={
        "np.log(min_p)": "A share of the probability is a difference of logits: no softmax is needed.",
        "np.partition": "The k-th largest, without sorting the others.",
        "np.cumsum": "NumPy sorts the tokens that the other two rules kept; the GPU does not.",
        "np.searchsorted": "The first place where the sum reaches p.",
    },
)

# %%
from minllm.kernels.sampling import build_sampling_tensors
from minllm.kernels.sampling.penalties import penalize_reference
from minllm.kernels.sampling.thresholds import thresholds_reference


def probabilities(x, prompt=(), temperature=1.0, **rule):
    """What a request with these parameters draws from: [vocabulary]."""
    sampling = build_sampling_tensors(
        [SamplingParams(temperature=temperature, seed=0, **rule)],
        len(x),
        [list(prompt)],
    )
    slots = np.int32([0])
    x = penalize_reference(x[None], sampling, slots)[0]
    kept = x >= thresholds_reference(x[None], sampling, slots)[0]
    return softmax(np.where(kept, x, -np.inf) / temperature)


print(
    np.round(100 * probabilities(five, min_p=0.2), 1),
    "% with min-p 0.2: 8, 4, 2 fourteenths",
)

# %% tags=["hide"]
assert np.count_nonzero(probabilities(five, top_k=2)) == 2
assert np.count_nonzero(probabilities(five, top_p=0.7)) == 2
assert np.count_nonzero(probabilities(five, min_p=0.2)) == 3

# %% [markdown]
# <!-- end aside -->
#
# The kept probabilities are divided by their sum. The next chart shows the rules on the model's own logits. `os` is
# already in the prompt, and the last row is a penalty (next section):

# %% tags=["fold"]
from minllm.course import heat_map

rules = {
    "the model": {},
    "T = 0.5": dict(temperature=0.5),
    "T = 1.5": dict(temperature=1.5),
    "top-k 5": dict(top_k=5),
    "top-p 0.6": dict(top_p=0.6),
    "min-p 0.1": dict(min_p=0.1),
    "repetition 1.3": dict(repetition_penalty=1.3),
}
shown = likeliest(logits["between"], 14)
table = np.stack(
    [
        100 * probabilities(logits["between"], ids["between"], **rule)[shown]
        for rule in rules.values()
    ]
)
heat_map(
    np.where(table > 0, np.round(table), np.nan),
    "Probability in %, of the 14 likeliest tokens, under each rule",
    row_names=list(rules),
    column_names=[piece(token) for token in shown],
    show_values=True,
    caption=f"The bundled model after {texts['between']!r}. No number: the token "
    "cannot be drawn.",
)

# %% tags=["fold"]
cuts = {
    "top-k 50": dict(top_k=50),
    "top-p 0.9": dict(top_p=0.9),
    "min-p 0.05": dict(min_p=0.05),
}
kept = {
    (rule, name): int(np.count_nonzero(probabilities(logits[name], **cut)))
    for rule, cut in cuts.items()
    for name in ("sure", "open")
}
bars(
    [
        Bar(rule, count, f"after {texts[name]!r}", colour)
        for rule in cuts
        for colour, name in enumerate(("sure", "open"))
        for count in [kept[rule, name]]
    ],
    unit="tokens",
    title="How many tokens a rule keeps",
    log=True,
    caption=f"The bundled model, {vocabulary:,} tokens, temperature 1.",
)

# %% tags=["hide"]
assert kept["top-k 50", "sure"] == kept["top-k 50", "open"] == 50
assert kept["top-p 0.9", "open"] > 10 * kept["top-p 0.9", "sure"]
assert (
    kept["min-p 0.05", "open"] < 3 * 50
    and kept["min-p 0.05", "sure"] < kept["min-p 0.05", "open"]
)

# %% [markdown]
# Top-k does not depend on the distribution: it keeps 50 tokens if five would be enough, and 50 if hundreds are
# reasonable. Top-p does, but if the choice is open, it keeps a very long tail. Min-p compares each token with the best
# one.
#
# <!-- aside: A high temperature raises the whole tail -->

# %% tags=["fold"]
kept_at = {
    rule: [
        (t, np.count_nonzero(probabilities(logits["sure"], temperature=t, **cut)))
        for t in temperatures
        if t >= 0.5
    ]
    for rule, cut in cuts.items()
}
curves(
    kept_at,
    "temperature",
    "tokens kept",
    f"What may be drawn after {texts['sure']!r}",
    log_y=True,
    caption="The bundled model. Where it is not sure, min-p keeps more as well.",
)

# %% tags=["hide"]
assert kept_at["top-p 0.9"][-1][1] > 20 * kept_at["min-p 0.05"][-1][1]

# %% [markdown]
# <!-- end aside -->
#
# !!! tip "Takeaway"
#     Each rule keeps the tokens above one threshold.
#
# ## Penalties against repetition
#
# Greedy decoding with a small model repeats itself. Penalties change the logits before all other rules. Let $c(v)$ be
# how often token $v$ was generated, and let a token be *seen* if it was generated or is in the prompt. The penalties
# apply in this order:
#
# $$\begin{aligned}
# x_v &\leftarrow \begin{cases} x_v / \rho & x_v > 0 \\ x_v \cdot \rho & x_v \le 0 \end{cases}
# && \text{if } v \text{ is seen} && \text{repetition penalty } \rho \\
# x_v &\leftarrow x_v - \varphi \cdot c(v) && && \text{frequency penalty } \varphi \\
# x_v &\leftarrow x_v - \pi && \text{if } c(v) > 0 && \text{presence penalty } \pi
# \end{aligned}$$
#
# A negative logit is multiplied, because dividing $-4$ by 2 gives $-2$, which is *likelier*.
#
# <!-- aside: An example by hand -->
#
# With
# $\rho = 2$, $\varphi = 0.5$, $\pi = 0.25$: the logits are $(4, -4, 3)$, token 0 was generated twice, token 1 is in the
# prompt, token 2 is new. Token 0: $4 / 2 - 0.5 \cdot 2 - 0.25 = 0.75$. Token 1: $-4 \cdot 2 = -8$. Token 2 stays 3.

# %%
from minllm.kernels.sampling.penalties import penalize

three = np.float32([[4, -4, 3]])  # [rows, vocabulary]
harsh = SamplingParams(
    repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25
)
sampling = build_sampling_tensors([harsh], 3, prompts=[[1]], outputs=[[0, 0]])
penalised = np.empty_like(three)
penalize(three, sampling, np.int32([0]), penalised)  # the kernel, in the simulator
print(penalised)

# %% tags=["hide"]
assert np.allclose(penalised, [[0.75, -8, 3]]) and np.array_equal(
    penalised, penalize_reference(three, sampling, np.int32([0]))
)

# %% [markdown]
# <!-- end aside -->
#
# With the bundled model, greedy, 100 tokens:

# %%
ways = {
    "none": {},
    "repetition 1.3": dict(repetition_penalty=1.3),
    "frequency 0.5": dict(frequency_penalty=0.5),
}
outputs = llm.generate(
    [start] * 3,
    [SamplingParams(temperature=0.0, max_tokens=100, **one) for one in ways.values()],
)
written = {name: output.outputs[0] for name, output in zip(ways, outputs)}
for name, one in written.items():
    print(
        f"--- {name}: {len(set(one.token_ids))} different tokens among "
        f"{len(one.token_ids)}"
    )
    print("\n".join(line[:100] for line in one.text.splitlines() if line.strip())[:180])

# %% tags=["hide"]
assert len(set(written["none"].token_ids)) < len(
    set(written["repetition 1.3"].token_ids)
)

# %% [markdown]
# !!! tip "Takeaway"
#     Penalties lower the logits of tokens that were seen, before all other rules.
#
# ## A draw without a state
#
# Most random generators keep a state, and each draw changes it. Then a user's text would depend on the other requests
# in the batch.
#
# Philox is a generator without a state. It is a function from a *counter* of 128 bits and a *key* of 64 bits to 128
# random bits. The key is the request's seed, and the counter is (token id / 4, number of the step). So the noise of a
# token depends on the seed, the position and the token, but not on the batch, the GPU or the order of threads.
#
# <!-- aside: Philox, and what one changed bit does -->

# %% tags=["hide-input"]
from minllm.kernels.sampling import philox as philox_file

show_source(
    philox_file.philox_4x32,
    folded="Philox: ten rounds of mixing",
    notes={
        "for _ in range(ROUNDS)": "Ten rounds of mixing: one is not enough.",
        "product_0 = uint64": "A product of two 32-bit numbers has 64 bits. The high half depends on all bits of both.",
        "c0 = uint32((product_1": "Halves are swapped and mixed with the key by exclusive or.",
        "k0 = uint32(": "The key moves on, by the golden ratio in units of 2 to the power of -32.",
    },
)

# %% tags=["fold"]
from minllm.kernels.sampling.philox import gumbel_reference, philox_reference

counters = np.uint32([[0, 0, 0, 0], [1, 0, 0, 0]])  # these differ in one bit
words = philox_reference(counters, np.uint32([0, 0]))  # [2, 4] of 32 bits
print(" ".join(f"{word:08x}" for word in words[0]))
print(" ".join(f"{word:08x}" for word in words[1]))
flipped = sum(
    int(a ^ b).bit_count() for a, b in zip(words[0].tolist(), words[1].tolist())
)
print(f"{flipped} of 128 bits differ")
assert [hex(int(word)) for word in words[0]] == [
    "0x6627e8d5",
    "0xe169c58d",
    "0xbc57ac4c",
    "0x9b00dbd8",
]
assert 40 < flipped < 88

# %% [markdown]
# <!-- end aside -->
#
# **How to draw with it.** The textbook way sums all weights, takes a random fraction of the sum, and adds up the
# tokens' weights until they reach it. This is a scan over 128,256 numbers whose rounding depends on the order. A race
# is better. Give every token a random time, $-\log u_v / w_v$ with $u_v$ uniform and $w_v = e^{x_v / T}$. Token $v$ has
# the earliest of these times with probability $w_v / \sum w$. The negative logarithm of the times turns the earliest
# into the largest, and gives the formula at the top: the Gumbel-max trick. A draw is greedy decoding with noise on the
# logits. It needs no sum and no softmax, only the same reduction as before.

# %% tags=["fold"]
token_ids, steps, seed = np.arange(4), 4000, np.uint32([7, 0])
four = np.log(np.float32([8, 4, 2, 1]))
noise = np.stack(
    [gumbel_reference(seed, step, token_ids) for step in range(steps)]
)  # [steps, 4]
drawn = np.bincount(np.argmax(four + noise, axis=1), minlength=4) / steps
expected = np.array([8, 4, 2, 1]) / 15
assert np.allclose(drawn, expected, atol=0.03)

# %% tags=["fold"]
bars(
    [
        Bar(f"token {v}", 100 * drawn[v], f"expected {100 * expected[v]:.1f} %", 2)
        for v in range(4)
    ],
    unit="%",
    title="4,000 draws by noise and argmax, weights 8, 4, 2, 1",
    caption="One seed, 4,000 steps; NumPy.",
)

# %% tags=["hide-input"]
from minllm.kernels.sampling import sample as sample_file

show_source(
    sample_file.draw_parts_kernel,
    folded="The kernel: argmax with noise",
    notes={
        "if scale > float32(0.0)": "Greedy rows and rows that draw may stand in one batch.",
        "words = philox_4x32": "Counter: a quarter of the token id, and the step. Key: the seed of this row.",
        "if not x < threshold": "Top-k, top-p and min-p, all three.",
        "score = x + scale * gumbel": "The noise is multiplied by T instead of dividing the logits by it.",
    },
)

# %% [markdown]
# <!-- aside: The same tokens in any batch -->
#
# This cell draws three rows together and each of them alone, with the kernel and with NumPy. Each row has its own seed
# and its own rule:

# %%
from minllm.kernels.sampling import sample_reference
from minllm.kernels.sampling.sample import SampleScratch, sample


def draw(x, params):
    """The kernels in the simulator: float32 [rows, vocabulary] -> token ids [rows]."""
    sampling = build_sampling_tensors(params, x.shape[1], [[1, 2]] * len(x))
    slots, out = (
        np.arange(len(x), dtype=np.int32),
        np.empty(len(x), np.int32),
    )  # row r, slot r
    scratch = SampleScratch.allocate(np.empty, *x.shape, sampling.kind)
    sample(x, sampling, slots, out, scratch)
    assert np.array_equal(
        out, sample_reference(x, sampling, slots)
    )  # NumPy chooses the same
    return out.tolist()


rows = np.stack(list(logits.values()))  # [3, vocabulary]
params = [SamplingParams(temperature=1.0, seed=number) for number in (3, 14, 15)]
params[1] = SamplingParams(temperature=1.0, min_p=0.05, seed=14)
together = draw(rows, params)
alone = [draw(rows[r : r + 1], params[r : r + 1])[0] for r in range(3)]
print("together", together, [piece(token) for token in together])
print("alone   ", alone)

# %% tags=["hide"]
assert together == alone

# %% tags=["hide"]
seeded = SamplingParams(temperature=0.8, seed=42, max_tokens=20)
(single,) = llm.generate(start, seeded)
among = llm.generate(
    ["import os\n", start, "def add(a, b):"],
    [SamplingParams(max_tokens=20), seeded, seeded],
)[1]
same = single.outputs[0].token_ids == among.outputs[0].token_ids
print(f"alone and among others: {'the same text' if same else 'different texts'}")
assert same or llm.device == "cuda"

# %% [markdown]
# !!! note "What a seed cannot promise"
#     The noise is the same for every batch. The logits may differ in the last bit, because a GEMM of another size may
#     sum in another order. If two tokens are so close that the last bit decides, two runs of a request can diverge
#     there.
#
# <!-- end aside -->
#
# !!! tip "Takeaway"
#     With noise that depends on seed, step and token alone, a draw is an argmax.
#
# ## Without sorting
#
# Top-k needs only the k-th largest of 128,256 numbers, so sorting them all is wasted work. **Radix selection** finds
# only that one. It turns the floats into integers of the same order, counts how many fall into each of 2,048 bins by
# their first 11 bits, and finds the bin of the k-th largest, counting from above. It repeats this in that bin with the
# next 11 bits and then the last 10. Top-p is the same search with probabilities instead of counts. They are integers,
# because sums of integers do not depend on the order of threads.
#
# <!-- aside: Radix selection, step by step -->

# %% tags=["hide-input"]
from minllm.kernels.sampling import radix_select

show_source(
    radix_select.ordered,
    notes={
        "0xFFFFFFFF": "A negative number: the larger its bits, the smaller it is. Invert all bits.",
        "0x80000000": "A positive one: above all negative ones.",
    },
)

# %%
from minllm.sim import tracing

k, large = 50, 3 * rng.standard_normal(128256, dtype=np.float32)
bits = large.view(np.uint32)
keys = np.where(
    bits >> 31, ~bits, bits | np.uint32(0x80000000)
)  # in the order of the floats
assert np.array_equal(np.argsort(keys, kind="stable"), np.argsort(large, kind="stable"))

candidates, wanted, left = keys, k, [len(keys)]
for shift, width in ((21, 11), (10, 11), (0, 10)):
    digits = (candidates >> shift) & (2**width - 1)
    counts = np.bincount(digits, minlength=2**width)
    above = (
        np.cumsum(counts[::-1])[::-1] - counts
    )  # [bins]: number of tokens in higher bins
    chosen = int(np.flatnonzero(above + counts >= wanted)[-1])
    candidates, wanted = candidates[digits == chosen], wanted - int(above[chosen])
    left.append(len(candidates))
found = large[keys == candidates[0]][0]
print(
    f"the {k}th largest is {found:.6f}; it was found in bins that held {left[1:]} keys"
)

# %% tags=["hide"]
assert found == np.sort(large)[-k]

# %% tags=["fold"]
bars(
    [
        Bar(name, count)
        for name, count in zip(
            ("at first", "after 11 bits", "after 22 bits", "after 32"), left
        )
    ],
    unit="keys",
    title="Candidates for the 50th largest",
    log=True,
    caption="128,256 random logits with deviation 3.",
)

# %% tags=["hide-input"]
show_source(
    radix_select.select_key,
    notes={
        "for level in range(3)": "11, 11 and 10 bits.",
        "fill_histogram": "One pass over the row's logits. The bins are in shared memory.",
        "if target == 0": "Top-p: after the first level the sum is known, and with it the target.",
        "find_bin": "From the highest bin down.",
        "prefix =": "The bits that are known so far.",
    },
)

# %% tags=["hide-input"]
show_source(
    radix_select.fill_histogram,
    notes={
        "low[thread] = uint32(0)": "Bins are two words of 32 bits, for shared memory adds 32 bits at a time.",
        "load_batch": "16 logits per thread, all loads in flight together.",
        "digits >> bits == prefix": "Only members of the bin that was chosen before.",
        "before = cuda.atomic.add": "Threads that hit the same bin are serialised.",
        "int64(before) + int64(weight)": "The thread whose add overflows the low word carries one to the high word.",
    },
)

# %% [markdown]
# <!-- end aside -->
#
# !!! tip "Takeaway"
#     The k-th largest is found by counting bins, in three passes and without sorting.
#
# ## Count the passes
#
# The simulator runs each rule on the bundled model's logits. How often is the row of logits read?

# %% tags=["fold"]
benched = {  # as in the recorded benchmark
    "greedy": dict(temperature=0.0),
    "temperature": dict(temperature=0.8),
    "top_k": dict(temperature=0.8, top_k=50),
    "top_p": dict(temperature=0.8, top_p=0.9),
    "top_k, top_p and min_p": dict(temperature=0.8, top_k=50, top_p=0.9, min_p=0.05),
    "penalties": dict(
        temperature=0.0,
        repetition_penalty=1.1,
        presence_penalty=0.5,
        frequency_penalty=0.2,
    ),
}
row, passes = rows[2:], {}  # [1, vocabulary]
of_the_vocabulary = (
    "logits",
    "token_flags",
    "output_counts",
    "out",
)  # the other arrays have one number per row
for name, rule in benched.items():
    with tracing() as traces:
        draw(row, [SamplingParams(seed=1, **rule)])
    arrays = [
        array
        for trace in traces
        for key, array in trace.arrays.items()
        if key in of_the_vocabulary
    ]
    passes[name] = sum(array.total.bytes for array in arrays) / row.nbytes
    print(
        f"{name:23} {len(traces)} launches, {passes[name]:.2f} times the bytes of a row"
    )
expected_passes = {
    "greedy": 1,
    "temperature": 1,
    "top_k": 4,
    "top_p": 5,
    "top_k, top_p and min_p": 8,
}
assert all(
    abs(passes[name] - expected) < 0.01 for name, expected in expected_passes.items()
)
assert abs(passes["penalties"] - 4.25) < 0.01

# %% [markdown]
# Top-k takes three passes for the selection and one for the draw. Top-p takes one more, for the maximum. Penalties read
# the logits, the counts and a byte of flags, and write new logits, which the last kernel reads.
#
# !!! tip "Takeaway"
#     Greedy reads the logits once. Top-k reads them four times, top-p five times.
#
# ## Measured against predicted
#
# A copy on an H200 moves half a megabyte in a tenth of a microsecond. Choosing a token takes longer:

# %%
from minllm.course import load_record, recorded

one_pass = 4 * 128256  # bytes of a row

ceilings = load_record()["ceilings"]
tb_s, tflops = ceilings["copy_tb_s"], ceilings["bf16_tflops"]
one_row, many_rows = (
    {
        name: recorded("sampling", f"{count}x128256, float32", name)[0]
        for name in benched
    }
    for count in (1, 64)
)
print(f"{'':23} floor of its bytes   1 row    64 rows")
for name, count in passes.items():
    floor_us = count * one_pass / tb_s / 1e6
    print(
        f"{name:23} {floor_us:14.2f} µs {one_row[name].value:9.1f} µs "
        f"{many_rows[name].value:7.1f} µs"
    )
print(one_row["greedy"].lines)

# %% tags=["fold"]
bars(
    [
        Bar(
            name.replace("_", "-"),
            found[name].value,
            ("1 row", "64 rows")[colour],
            colour,
        )
        for name in benched
        for colour, found in enumerate((one_row, many_rows))
    ],
    unit="µs",
    title="Time to choose a token, vocabulary of 128,256",
    caption=f"float32 logits; {one_row['greedy'].label}.",
)

# %% tags=["hide-input"]
guess.against(
    greedy_bytes=passes["greedy"] * one_pass,
    top_p_bytes=passes["top_p"] * one_pass,
    top_p_over_greedy=one_row["top_p"].value / one_row["greedy"].value,
)

# %% [markdown]
# **Greedy, one row.** The lower bound is far below the fixed cost of a kernel, and greedy takes two kernels. Launches
# limit it, not memory. With 64 rows the bytes begin to matter.
#
# **Top-p, one row.** The draw is spread over 32 blocks, but *one block per row* does the selection, because its threads
# share a histogram. One block runs on one SM, and all other SMs are idle. So 64 rows, on 64 SMs, take hardly longer
# than one.
#
# <!-- aside: How far each is from its limit -->

# %% tags=["fold"]
from minllm.machine.hardware import gpu_named

_, h200 = gpu_named("h200")
more = many_rows["top_p"].value / one_row["top_p"].value
selection_us = (
    one_row["top_p"].value - one_row["temperature"].value
)  # what top-p adds to a plain draw
a_block = 4 * one_pass / selection_us / 1e6  # TB/s
print(f"64 rows take {more:.2f} times as long as one")
print(
    f"the block of a row moves {1e3 * a_block:.0f} GB/s; a copy's share of each SM is "
    f"{1e3 * tb_s / h200.multiprocessors:.0f} GB/s"
)
assert more < 2 and a_block < tb_s / h200.multiprocessors

# %% tags=["fold"]
from minllm.course import Dot, roofline

intensity = {"greedy": 0.25, "temperature": 60 / 16}
dots = [
    Dot("", per_byte, tb_s * per_byte, measured=False)
    for per_byte in intensity.values()
]
for colour, (name, per_byte) in enumerate(intensity.items()):
    reached = 64 * one_pass / many_rows[name].value / 1e6  # TB/s
    dots.append(
        Dot.of_bandwidth(
            f"{name}: {reached:.2f} TB/s", per_byte, reached, colour=colour
        )
    )
roofline(
    dots,
    tb_s,
    tflops,
    "Greedy and a plain draw, 64 rows",
    caption="Rings: what memory would allow. 128,256 tokens, float32; "
    f"{many_rows['greedy'].label}.",
)

# %% tags=["hide"]
assert many_rows["greedy"].of_limit > 0.5 > 2 * many_rows["temperature"].of_limit

# %% [markdown]
# Greedy is near the slope. The draw is well below it, although it reads the same bytes: the noise also takes about 200
# *integer* operations per four tokens, which a roofline of tensor cores does not show. If a kernel is far from both
# limits, look for work that the roofline leaves out.
#
# <!-- end aside -->
#
# **Does it matter?** Compare it with a decode step of two models with this vocabulary:

# %% tags=["fold"]
for model in ("llama-3.1-8b", "llama-3.2-1b"):
    (decode,) = recorded("decode", model)
    step_us = 1e6 / decode.value
    assert one_row["greedy"].value < 0.01 * step_us < one_row["top_p"].value
    shares = ", ".join(
        f"{name} {100 * one_row[name].value / step_us:.1f} %"
        for name in ("greedy", "top_p")
    )
    print(f"{model}: a greedy step takes {step_us:,.0f} µs; {shares} of it")

# %% [markdown]
# For the large model it is little; for the small one it begins to matter. On a machine with a GPU, this cell measures
# yours:

# %% tags=["fold"]
from minllm.course import has_gpu

if has_gpu():
    from minllm.course import kernel_seconds, machine_line
    from minllm.ops.cuda_ops import CudaOps

    ops = CudaOps()
    x = 3 * rng.standard_normal((1, 128256), dtype=np.float32)
    on_device, out = ops.array(x), ops.empty((1,), np.int32)
    for name, rule in benched.items():
        sampling = build_sampling_tensors(
            [SamplingParams(seed=1, **rule)], x.shape[1], [[1, 2]]
        )
        tensors = sampling.to(ops.array)
        scratch = SampleScratch.allocate(ops.empty, *x.shape, tensors.kind)
        chosen = on_device, tensors, ops.array(np.int32([0])), out, scratch
        seconds = kernel_seconds(lambda stream, chosen=chosen: sample(*chosen, stream))
        assert np.array_equal(
            ops.to_host(out), sample_reference(x, sampling, np.int32([0]))
        ), name
        print(f"{name:23} {1e6 * seconds:7.1f} µs")
    print(machine_line())
else:
    print("No GPU here: nothing was timed on this machine.")

# %% [markdown]
# ## Exercises
#
# The argmax is above. Now write the penalties:

# %% tags=["hide-input"]
show_exercises("sampling.penalties")

# %% [markdown]
# ## A detective case

# %% tags=["hide-input"]
from minllm.course import show_case

show_case("long_batch")

# %% [markdown]
# ## Problems
#
# ??? question "1. Probabilities 50, 30, 15 and 5 %. What do top-k 2, top-p 0.9 and min-p 0.2 keep?"
#     The first two; the first three (50 + 30 = 80 is not enough); the first three (at least 10 %).
#
# ??? question "2. Logits 2, 1 and -1 with a repetition penalty of 2; tokens 0 and 2 are seen. What are the new logits? And if the penalty divided all of them?"
#     1, 1 and -2. Dividing would give -0.5 for the last, which is likelier than before.
#
# ??? question "3. A step of the 1B shape takes 0.78 ms; top-p takes 60 µs for one row, greedy 7. How much more does a million tokens cost with top-p, at 4 dollars per hour and batch 1?"
#     53 µs of 0.78 ms, 7 %: at 0.87 dollars per million tokens, about 6 cents. At batch 64 the selection runs on 64
#     SMs and costs next to nothing per token.
#
# ??? question "4. A batch of 64 with 128,256 tokens: how many bytes do penalties read and write per step, and how long does that take at 4.2 TB/s?"
#     Per entry, 4 bytes of logits, 4 of counts and 1 of flags are read, 4 are written, then 4 are read: 17 bytes ·
#     128,256 · 64 = 140 MB, 33 µs: about 3 % of a step of the 1B shape.
#
# ??? question "5. Why is a draw with a running sum (a scan) worse for a GPU than noise and argmax?"
#     A scan over blocks needs two passes or a chain of blocks that wait for each other. An argmax merges in any order,
#     in one pass, and its result does not depend on rounding.
#
# ## What next

# %%
(smallest,) = recorded("sampling", "64 rows", "advance")
print(one_row["greedy"])
print(smallest)

# %% tags=["hide"]
assert one_row["greedy"].of_limit < 0.1

# %% [markdown]
# Greedy decoding of one row reaches a few percent of what memory allows, and the kernel that only advances positions
# takes half as long. These microseconds are prologues and epilogues. A decode step has dozens of such kernels, one
# after another. [Lesson 15](15_launch_overhead_and_cuda_graphs.py) launches them all at once, and lets one begin before
# the previous one has ended.
#
# ## Sources
#
# - A. Holtzman et al., "The Curious Case of Neural Text Degeneration", ICLR 2020, sections 1 and 3: top-p.
# - A. Fan, M. Lewis, Y. Dauphin, "Hierarchical Neural Story Generation", ACL 2018, section 5: top-k.
# - M. N. Nguyen et al., "Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM Outputs", ICLR 2025,
#   section 3.
# - N. S. Keskar et al., "CTRL", 2019, section 4.1: the repetition penalty.
# - J. K. Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011, section 3.3: Philox.
# - C. J. Maddison, D. Tarlow, T. Minka, "A* Sampling", NIPS 2014, section 2: the Gumbel-max trick.
# - D. E. Knuth, "The Art of Computer Programming", volume 3, section 5.2.5: sorting by distribution.
