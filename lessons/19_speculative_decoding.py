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
# # 19. Speculative decoding
#
# A decode step reads all weights to compute one row per sequence, and could compute a hundred rows in the same time. In
# speculative decoding a cheap method guesses the next tokens, and one step of the model checks them all. The engine
# keeps the right guesses, and the text is the one that decoding token by token gives.
#
# ```mermaid
# flowchart LR
#     n["newest token<br/>the"] --> m["one step of the model<br/>5 rows"]
#     d["drafts<br/>cat sat on mat"] --> m
#     m --> c["what the model chooses<br/>cat sat on a tree"]
#     c --> a["right: cat sat on<br/>one more: a<br/>4 new tokens"]
# ```
#
# $$\text{a draft } f \text{ is accepted with probability } \min\!\Big(1, \frac{p(f)}{q(f)}\Big), \quad
# E(a, k) = 1 + a + a^2 + \dots + a^k$$
#
# $p$ is the model's distribution after the tokens before $f$, and $q$ is the one that the draft was drawn from. $E$ is
# the mean number of tokens of a step that verifies $k$ drafts, each right with probability $a$. For greedy decoding the
# rule is a comparison: a draft is right if it is the token that the model chooses. A warp compares all drafts without a
# loop:

# %%
from numba import cuda

from minllm.runtime.kernel import kernel


@kernel
def keep_right_drafts(drafts, chosen, text, lengths):  # [B, k], [B, k + 1], [B, W], [B]
    """A warp per sequence: append the right drafts, and one token more, to its text."""
    sequence, lane = cuda.blockIdx.x, cuda.threadIdx.x
    k, length = drafts.shape[1], lengths[sequence]
    is_wrong = True  # for lanes without a draft
    if lane < k:
        is_wrong = drafts[sequence, lane] != chosen[sequence, lane]
    wrong = cuda.ballot_sync(0xFFFFFFFF, is_wrong)  # bit i: draft i is wrong
    right = cuda.ffs(wrong) - 1  # the lowest bit that is set; ffs counts from 1
    if lane <= right:  # chosen[right] follows the last right draft, so it is new too
        text[sequence, length + lane] = chosen[sequence, lane]
    cuda.syncwarp()  # every lane has read the length
    if lane == 0:
        lengths[sequence] = length + right + 1


# %% [markdown]
# **What you will be able to do**
#
# - say from which batch size on a guess costs time, on any GPU;
# - prove that drafts do not change the distribution of the text, and test it by counting;
# - choose the number of drafts from an acceptance rate, and predict when speculation loses.
#
# You need [lesson 4](04_arithmetic_intensity_and_the_roofline.py) and [lesson 14](14_choosing_the_next_token.py). You
# need no GPU.
#
# ## Predict

# %% tags=["hide-input"]
from minllm.course import Prediction

guess = Prediction(
    five_rows_percent="The 8B shape on an H200, batch 1: by what percentage does the floor of a step grow if it computes 5 rows, not 1?",
    tokens_of_4="Each draft is right with probability 0.8. How many tokens does a step with 4 drafts yield on average?",
    tokens_of_64="How many does a step with 64 drafts yield?",
    text_of_nonsense=(
        "A draft draws from all tokens with equal probability, and the rule above decides. Which distribution does the text have?",
        "the model's",
        "the draft's",
        "a mixture",
    ),
    speed_up_at_64="The 8B shape, 64 sequences, 8 drafts of each, right with probability 0.7, made at no cost: what is the speed-up?",
    tokens_of_the_bundled_draft="The bundled model has a draft model with 2 of its 6 layers and 2 of its 5 heads. It drafts 4 greedy tokens. How many tokens does a step yield?",
)
guess.ask()

# %% [markdown]
# ## One verification
#
# This cell runs the kernel from the top, which takes up to 31 drafts, on three sequences. All drafts of the first are
# right. The second has one wrong draft, and the third has a wrong first draft. *After* these the drafts are right
# again:

# %%
import numpy as np

from minllm.sim import detecting

drafts = np.int32([[11, 12, 13, 14], [21, 22, 90, 24], [91, 32, 33, 34]])
chosen = np.int32([[11, 12, 13, 14, 15], [21, 22, 23, 24, 25], [31, 32, 33, 34, 35]])
text, lengths = np.zeros((3, 9), np.int32), np.int32([2, 3, 1])
with detecting():  # races, and memory that nobody wrote
    keep_right_drafts.simulate[3, 32](drafts, chosen, text, lengths)
print(text, "lengths", lengths, sep="\n")

# %% tags=["hide"]
assert lengths.tolist() == [2 + 5, 3 + 3, 1 + 1]
assert text[0, 2:7].tolist() == [11, 12, 13, 14, 15]
assert text[2, 1:3].tolist() == [31, 0]

# %% [markdown]
# Write the engine's version of this kernel:

# %% tags=["hide-input"]
from minllm.course import show_exercises

show_exercises("speculation.accept")

# %% [markdown]
# A right draft after a wrong one is worth nothing: the model computed it after a text that does not exist. Even the
# third sequence gained a token: **a step never yields less than plain decoding**. The keys and values of wrong drafts
# stay in the cache. The length excludes them, and the next step overwrites them.
#
# !!! tip "Takeaway"
#     Drafts count up to the first wrong one, and one token of the model's own comes on top.
#
# ## Why a guess is free
#
# The linear layers take the longer of two times: reading their weights, once for all rows, and multiplying each row by
# them. `minllm/costs` counts both:

# %%
from minllm import costs
from minllm.costs.serving import StepCosts
from minllm.costs.speculation import best_num_drafts, expected_tokens, speed_up
from minllm.models.shapes import find_config

TB_S, TFLOPS = 4.2, 800  # round figures of an H200
_, llama8 = find_config("llama-3.1-8b")
step = StepCosts.of(llama8, TB_S, TFLOPS)
one_row = step.linear_seconds(1, 1)
for rows in (1, 2, 5, 17, 65, 257):
    seconds = step.linear_seconds(rows, rows)
    print(f"{rows:4} rows: {1e3 * seconds:.3f} ms, {seconds / one_row:.4f} times one")
five_rows_percent = 100 * (step.linear_seconds(5, 5) / one_row - 1)

# %% tags=["hide"]
assert five_rows_percent < 0.01 and 180 < step.ridge < 200

# %% [markdown]
# Up to 190 rows, reading the weights hides the arithmetic. A step for one sequence uses one of these rows. Guesses can
# use the other 189, and so can a larger batch: the two compete for the same rows.
#
# Attention gains in the same way: the 5 rows of a verification read the sequence's keys once, as a chunk of a prompt
# does. A verification is *the same forward* as a prefill of 5 tokens after the cached ones.
#
# !!! tip "Takeaway"
#     Up to the ridge, more rows take no more time. Drafts and other sequences share this free room.
#
# ## The rule, with a temperature
#
# With a temperature, "the token that the model chooses" is a draw. Accept draft $f$ with probability
# $\min(1, p(f)/q(f))$. If it is rejected, draw a token $v$ from the *residual* $r(v) \propto \max(p(v) - q(v), 0)$
# instead. Then the token is $v$ with probability $p(v)$, whatever $q$ is.
#
# ??? note "The proof, in five lines"
#     1. The draft is $v$ and accepted: $q(v) \min(1, p(v)/q(v)) = \min(p(v), q(v))$.
#     2. So a draft is accepted with probability $a = \sum_v \min(p(v), q(v))$, and rejected with $1 - a$.
#     3. The residual's total is $\sum_v \max(p(v) - q(v), 0) = \sum_v \big(p(v) - \min(p(v), q(v))\big) = 1 - a$.
#     4. The draft is rejected and the residual gives $v$: $(1 - a) \cdot \max(p(v) - q(v), 0) / (1 - a)$.
#     5. Together $\min(p(v), q(v)) + \max(p(v) - q(v), 0) = p(v)$. ∎
#
#     Line 2 says how often a draft is accepted: $a$ is one minus the total variation distance between $p$ and $q$.
#
# This cell tests the rule by counting, with 8 tokens and three kinds of drafts:

# %%
rng = np.random.default_rng(0)
COUNT = 200_000


def speculative_draws(p, q):
    """(tokens by the rule, whether each draft was accepted)."""
    draft = rng.choice(len(q), COUNT, p=q)
    accepted = rng.random(COUNT) < p[draft] / q[draft]
    residual = np.maximum(p - q, 0)
    instead = rng.choice(len(p), COUNT, p=residual / residual.sum())
    return np.where(accepted, draft, instead), accepted


p, counted = rng.dirichlet(np.ones(8)), []
for name, q in {
    "near": 0.8 * p + 0.2 / 8,
    "uniform": np.full(8, 1 / 8),
    "far": rng.dirichlet(np.ones(8)),
}.items():
    tokens, accepted = speculative_draws(p, q)
    share = np.bincount(tokens, minlength=8) / COUNT
    chi_square = COUNT * np.sum((share - p) ** 2 / p)  # 7 degrees of freedom
    print(f"{name:7} accepted {accepted.mean():.3f}, chi-square {chi_square:5.1f}")
    counted.append((chi_square, accepted.mean() - np.minimum(p, q).sum()))

# %% tags=["hide"]
for chi_square, off in counted:
    assert chi_square < 24.3  # 999 of 1,000 fair samples are below
    assert abs(off) < 0.005

# %% [markdown]
# With 7 degrees of freedom chi-square is 7 on average: even the uniform draft gives the model's own distribution. The
# rule holds at each position, given the tokens before it, and therefore for the whole text.
#
# !!! tip "Takeaway"
#     A bad draft costs speed, never quality.
#
# ## Tokens per step

# %% tags=["fold"]
from minllm.course import curves

curves(
    {
        f"a = {a}": [(k, expected_tokens(a, k)) for k in range(17)]
        for a in (0.5, 0.7, 0.8, 0.9)
    },
    "drafts",
    "tokens per step",
    "E(a, k): what a step yields",
    caption="Computed by costs/speculation.py, each draft right with probability a.",
)

# %%
by_chance = []
for a, k in ((0.8, 4), (0.8, 64)):
    right = np.cumprod(rng.random((50_000, k)) < a, axis=1).sum(axis=1)
    drawn, formula = 1 + right.mean(), expected_tokens(a, k)
    by_chance.append((drawn, formula))
    print(f"a {a}, {k:2} drafts: {formula:.2f}, by chance {drawn:.2f}")
tokens_of_4, tokens_of_64 = expected_tokens(0.8, 4), expected_tokens(0.8, 64)

# %% tags=["hide"]
for drawn, formula in by_chance:
    assert abs(drawn - formula) < 0.06

# %% [markdown]
# The number of tokens stays below $1 / (1 - a)$ for every $k$: sixteen times as many drafts give one and a half times
# the tokens.
#
# <!-- aside: The engine gives the same numbers if chance decides -->
#
# The option `synthetic_acceptance_rate` replaces the comparison with a draw:

# %%
import minllm
from minllm import LLM, SamplingParams

OPTIONS = dict(device="cpu", dtype="float32", max_num_seqs=4)
params = [
    SamplingParams(temperature=0, max_tokens=120, ignore_eos=True, seed=seed)
    for seed in range(4)
]
engines = {}
for k in (2, 4):
    config = dict(num_speculative_tokens=k, synthetic_acceptance_rate=0.8)
    with LLM(**OPTIONS, speculative_config=config) as llm:
        llm.generate([[5, 6, 7]] * 4, params)
        engines[k] = llm.llm_engine.stats().spec_decode_mean_acceptance_length
    print(f"{k} drafts: {engines[k]:.2f} tokens, E = {expected_tokens(0.8, k):.2f}")

# %% tags=["hide"]
for k, found in engines.items():
    assert abs(found - expected_tokens(0.8, k)) < 0.3

# %% [markdown]
# <!-- end aside -->
#
# !!! tip "Takeaway"
#     More drafts yield ever less. A better draft yields more: the limit is $1 / (1 - a)$.
#
# ## When it loses

# %% tags=["fold"]
_, llama1 = find_config("llama-3.2-1b")
small = StepCosts.of(llama1, TB_S, TFLOPS)
batches = [2**i for i in range(9)]
lines = {
    f"{k} drafts": [(n, speed_up(step, 0.7, n, k)) for n in batches] for k in (2, 4, 8)
}
lines["4, drafted by the 1B shape"] = [
    (n, speed_up(step, 0.7, n, 4, small)) for n in batches
]
curves(
    lines,
    "sequences",
    "times as fast as plain decoding",
    "The 8B shape, each draft right with probability 0.7",
    log_x=True,
    log_y=True,
    caption="Computed from 4.2 TB/s and 800 TFLOP/s, linear layers only. The first "
    "three get their drafts at no cost.",
)

# %%
for n in (1, 32, 64, 128, 256):
    free, paid = (best_num_drafts(step, 0.7, n, 16, draft) for draft in (None, small))
    print(f"{n:3} sequences: best {free:2} free drafts, {paid} of the 1B shape")
speed_up_at_64 = speed_up(step, 0.7, 64, 8)

# %% tags=["hide"]
assert 1 < speed_up_at_64 < 1.1 and speed_up(step, 0.7, 256, 2) < 0.8
assert best_num_drafts(step, 0.7, 256, 16) == 0

# %% [markdown]
# There are three ways to lose:
#
# - **A large batch.** Beyond the ridge a step takes time in proportion to its $n(1 + k)$ rows, and wrong rows take as
#   long as right ones.
# - **A long draft.** Row 8 is useful with probability $0.7^8 = 6\,\%$, and costs as much as row 1.
# - **An expensive draft.** $k$ drafts, one after another, from a model with a sixth of the bytes take $k/6$ of a step.
#   N-grams are free, but right less often.
#
# The engine therefore counts how often each sequence's drafts were right, and calls `best_num_drafts` before every
# step, if it has the GPU's data sheet. The result may be 0.
#
# !!! tip "Takeaway"
#     Speculation pays in small batches, with short drafts that cost little.
#
# ## The bundled model guesses
#
# There are two sources of drafts: a model a tenth of the size, and the text itself. The n-gram method looks for the
# last earlier occurrence of the newest tokens, and proposes what followed it.

# %%
SOURCES = {
    "plain": None,
    "its draft": {"method": "draft_model", "num_speculative_tokens": 4},
    "n-grams": {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "prompt_lookup_max": 3,
        "prompt_lookup_min": 2,
    },
}
params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
drawn = SamplingParams(temperature=0.8, seed=3, max_tokens=32, ignore_eos=True)
texts, draws, per_step = {}, {}, {}
for name, config in SOURCES.items():
    with LLM(**OPTIONS, speculative_config=config) as llm:
        ids = llm.tokenizer.encode(minllm.held_out_text()[50000:60000])
        prompts = [ids[at : at + 150] for at in (0, 700, 1400)]
        texts[name] = [one.outputs[0].text for one in llm.generate(prompts, params)]
        stats = llm.llm_engine.stats()
        draws[name] = [one.outputs[0].text for one in llm.generate(prompts, drawn)]
    decoded = 3 * (64 - 1)  # the prefill gives the first token of each
    per_step[name] = decoded / (decoded - stats.spec_decode_num_accepted_tokens)
    right = stats.spec_decode_num_accepted_tokens_per_pos
    print(f"{name:9} {per_step[name]:.2f} tokens per step, {right}")

# %% tags=["hide"]
assert texts["its draft"] == texts["n-grams"] == texts["plain"]
assert draws["n-grams"] == draws["plain"] != draws["its draft"]
assert 1.5 < per_step["its draft"] < 4 and 1 < per_step["n-grams"]

# %% [markdown]
# The greedy text is the same in all three runs. The lists count the steps in which more than 0, 1, 2 and 3 drafts were
# right: the first draft is right in most steps, and n-grams give no draft if the text does not repeat.
#
# ??? note "And with a temperature?"
#     With n-grams the text does not change at temperature 0.8 either, for the same seed. The n-gram method proposes its
#     token with certainty, so $q = 1$. Accepting it with probability $p(f)$, and otherwise drawing from the rest, is one
#     draw from $p$, and the engine makes the same draw as plain decoding. With the draft model the text is a different one
#     from the same distribution. One caveat: a different number of rows may use a different kernel, whose sums round
#     differently. Greedy text can then differ at a token whose two best logits are equal up to rounding, with or without
#     drafts.
#
# !!! tip "Takeaway"
#     The greedy text is the same with any source of drafts. Only the number of steps changes.
#
# ## From one warp to the engine
#
# The engine stores the rows of all sequences one after another, and each sequence has its own number of drafts. A
# thread finds where its run of rows begins:

# %% tags=["hide-input"]
from minllm.course import show_source
from minllm.kernels.speculation import accept, rejection

show_source(
    accept.accept_kernel,
    folded="The package's kernel for greedy drafts and n-grams: the one of the exercise",
    notes={
        "begins_run(slots, row)": "Neighbouring rows of one slot are a run: a verification, or a single decode.",
    },
)

# %% tags=["hide-input"]
show_source(
    rejection.reject_kernel,
    folded="The package's kernel for drafts that were drawn: the rule above",
    notes={
        "is_accepted(": "u < p / q, as logarithms, so that nothing underflows.",
        "residual_draw(": "All threads draw from max(p - q, 0), by the Gumbel trick of lesson 14.",
    },
)

# %% [markdown]
# The number of right drafts is computed on the GPU. The GPU also makes the rows of the next step, from lengths that the
# last step wrote, so it does not wait for the host.
#
# !!! tip "Takeaway"
#     Acceptance stays on the GPU, so the host can plan the next step before it knows how many drafts were right.
#
# ## Measured against predicted

# %%
from minllm.costs.step_time import StepRates, StepTimes
from minllm.course import listing, recorded

for benchmark in ("speculation", "speculation step"):  # names in the record
    print(listing(recorded(benchmark, "0.8 of drafts", "ngram")))
near = StepTimes(llama8, StepRates.of(TB_S, TFLOPS))  # closer to measured steps
for n in (1, 4, 16, 64):
    best = best_num_drafts(near, 0.8, n, 4)
    gain = speed_up(near, 0.8, n, best)
    print(f"{n:2} sequences: {gain:.2f} times with {best} drafts")

# %% tags=["hide-input"]
guess.against(
    five_rows_percent=five_rows_percent,
    tokens_of_4=tokens_of_4,
    tokens_of_64=tokens_of_64,
    text_of_nonsense="the model's",
    speed_up_at_64=speed_up_at_64,
    tokens_of_the_bundled_draft=per_step["its draft"],
)

# %% [markdown]
# The curves above are floors: they assume that reading and arithmetic overlap completely. The engine chooses the number
# of drafts with `StepTimes`, in which the two overlap in part, starting a kernel takes time, and rows beyond 256 come
# in whole tiles. Eleven of twelve measured gains lie within a tenth of its predictions
# ([table](../docs/speculation.md#what-it-gains)). Published gains at batch 1: 2 to 3 times with a draft model
# (Leviathan et al. 2023), up to 6.5 times with drafts from the model's own hidden states (Li et al. 2025). They shrink
# as the batch grows, like the curves above.
#
# Vary acceptance, drafts, batch and GPU yourself: [speculation, row by row](../docs/speculative-decoding.md).
#
# ## Exercises
#
# This lesson's exercise is above.
#
# When your kernel passes, it can run in the engine. The last case of its check generates text with n-gram drafts, and
# so does this command:
#
# ```
# minllm generate --variant accept=FILE --speculative-config \
#   '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}'
# ```
#
# ## Detective cases

# %% tags=["hide-input"]
from minllm.course import show_case

show_case("punished_for_success")

# %% [markdown]
# <!-- aside: Two more cases -->

# %% tags=["hide-input"]
show_case("forgotten_question")

# %% tags=["hide-input"]
show_case("too_agreeable")

# %% [markdown]
# <!-- end aside -->
#
# ## Problems
#
# ??? question "1. A GPU has 2.0 TB/s and 312 TFLOP/s (an A100, 80 GB). How many rows are free with 16-bit weights? With 4-bit weights of 4.5 bits?"
#     A weight takes 2 bytes and 2 FLOPs per row: 312 / 2.0 = 156 rows. At 4.5 bits it takes 0.56 bytes: 44 rows.
#     Quantised weights leave fewer free rows for drafts.
#
# ??? question "2. One H200 at 4 dollars per hour decodes one sequence of the 8B shape in 3.6 ms per token. Drafts are right with probability 0.7, k is 4 and n-grams find them. What does a million tokens cost before and after? And at 128 sequences?"
#     1e6 x 3.6 ms is 1 hour: 4 dollars. With E = 2.77 tokens per step it is 1.44. At 128 sequences plain decoding costs
#     3.1 cents, and 128 x 5 rows take 3.4 times as long for 2.77 times the tokens: 3.8 cents. Speculation uses idle
#     arithmetic, and here none is left.
#
# ??? question "3. p = (0.5, 0.3, 0.2) and q = (0.2, 0.2, 0.6). How often is a draft accepted, and what is the residual?"
#     a = 0.2 + 0.2 + 0.2 = 0.6. The residual is (0.3, 0.1, 0) / 0.4 = (0.75, 0.25, 0). Check: 0.2 + 0.4 x 0.75 = 0.5.
#
# ??? question "4. A draft model always takes its likeliest token, and the request has temperature 1. The rule uses q = 1 for that token. How often is it accepted, and would a drawn draft be better?"
#     With probability p(f), at most the largest p. For p = q = (0.4, 0.3, 0.3) that is 0.4; a draft drawn from q is
#     always accepted. With a temperature, draw the draft.
#
# ??? question "5. Drafts are free, and 32 sequences of the 8B shape decode on an H200, where 190 rows are free. How many drafts fit, and what do they yield at a = 0.9?"
#     190 / 32 - 1 = 4.9, so 4: E = 4.1 tokens per step in about the same time. With 5 the step is 192 rows, 1 % beyond
#     the ridge, and E = 4.7: still better. The ridge is a bend, not a wall: another draft pays as long as it adds a
#     larger percentage to the tokens than to the time.

# %% tags=["hide"]
assert 312 / 2.0 == 156 and round(312 / 2.0 * 4.5 / 16) == 44
assert round(4 / expected_tokens(0.7, 4), 2) == 1.44
plain_cents = 100 * 4 * 1e6 * step.linear_seconds(128, 128) / 128 / 3600
slower = step.linear_seconds(640, 640) / step.linear_seconds(128, 128)
assert round(plain_cents, 1) == 3.1 and round(slower, 1) == 3.4
assert abs(plain_cents / speed_up(step, 0.7, 128, 4) - 3.8) < 0.1
assert round(expected_tokens(0.9, 4), 1) == 4.1
assert round(expected_tokens(0.9, 5), 1) == 4.7
assert best_num_drafts(step, 0.9, 32, 16) >= 5
assert 0.005 < step.linear_seconds(192, 192) / step.linear_seconds(190, 190) - 1 < 0.015
sizes = [costs.parameter_count(config) for config in (llama1, llama8)]
assert 6 < sizes[1] / sizes[0] < 7

# %% [markdown]
# ## What next, and the measurement behind it
#
# Acceptance limits the tokens per step to $1 / (1 - a)$, and no kernel changes that. Better drafts do: heads on the
# model's hidden states (Medusa, EAGLE), trees that try several continuations at once, and guesses that the model
# computes for itself (lookahead decoding). [The engine has the last
# two](../docs/speculation.md#several-guesses-for-one-place): a row then attends to its ancestors instead of all rows
# before it. When the batch fills one GPU, no rows are left for drafts, and the next remedy is [a second
# GPU](20_several_gpus.py).
#
# ## Sources
#
# - Y. Leviathan, M. Kalman, Y. Matias, "Fast Inference from Transformers via Speculative Decoding", ICML 2023, sections 2 and
#   3, appendix A.1 (the proof).
# - C. Chen et al., "Accelerating Large Language Model Decoding with Speculative Sampling", 2023, theorem 1.
# - A. Saxena, "Prompt Lookup Decoding", 2023.
# - Y. Li et al., "EAGLE-3", 2025, section 4.
# - T. Cai et al., "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads", ICML 2024.
