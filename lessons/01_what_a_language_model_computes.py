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
# # 1. What a language model computes
#
# A language model is a function. Token ids go in; at every position, one score for each token of the vocabulary comes
# out. Text is written by calling this function again and again. In this lesson you call it, look at what goes in and
# out, and see why reading a prompt and writing an answer load a machine in two different ways.
#
# ```mermaid
# flowchart LR
#     A["token ids<br/>[T]"] --> B["embedding<br/>[T, 320]"]
#     B --> C["attention<br/>+ feed-forward<br/>6 layers<br/>[T, 320]"]
#     C --> D["norm and head<br/>[T, 4096]"]
#     D --> E["logits:<br/>a score for each<br/>possible next token"]
# ```
#
# $$h_t = E_{\mathrm{token}(t)} \qquad x = \mathrm{head}(\mathrm{layers}(h)) \qquad p_v = \frac{e^{x_v}}{\sum_w e^{x_w}}$$
#
# The first arrow is the engine's simplest kernel: each token id selects a row of a table. Lesson 2 explains how a
# kernel works. For now, find the line that does what the equation says.

# %% tags=["hide-input"]
from minllm.course import show_source
from minllm.kernels.embedding import lookup

show_source(
    lookup.embedding_kernel,
    notes={
        "wait_for_predecessors": "For speed alone; skip it until lesson 15.",
        "cuda.blockIdx.x": "One block of threads per token: the block's number says which.",
        "row = token_ids[token]": "The token's id chooses the row of the table.",
        "i = cuda.threadIdx.x": "The threads of a block share the row's elements: each begins at its own number.",
        "out[token, i] = embedding[row, i]": "The whole computation: a copy.",
        "i += BLOCK": "A row longer than the block takes several steps.",
    },
)

# %% [markdown]
# **What you will be able to do**
#
# - say what tokens, embeddings, hidden states and logits are, and give the shape of each;
# - turn logits into probabilities, and probabilities into bits per byte, the figure by which models are compared;
# - tell prefill from decode, and predict which of them is limited by memory and which by arithmetic.
#
# You need Python and a little linear algebra: vectors, matrices, and how to multiply two matrices. You need no GPU.
#
# ## Predict
#
# minllm comes with a small model of Python code: 6 layers, hidden size 320, a vocabulary of 4,096 tokens, 7.95 million
# weights of 2 bytes each. A wrong guess teaches more than no guess.

# %% tags=["hide-input"]
from minllm.course import Prediction

guess = Prediction(
    decode_bytes="To write one token, how many bytes must be read from memory?",
    decode_flops="And how many floating-point operations does it take?",
    prefill_flops="How many operations does it take to read a prompt of 512 tokens at once?",
    prefill_bytes_times="By what factor does that move more bytes than writing one token?",
)
guess.ask()

# %% [markdown]
# ## Write your own
#
# A model ends in one number per token of its vocabulary, its *logit*. The softmax of these numbers is a
# probability for each token, $p_i = e^{z_i} / \sum_j e^{z_j}$. Programs keep its logarithm, which does not underflow. Write it
# in NumPy:

# %% tags=["hide-input"]
from minllm.course import show_exercises

show_exercises("sampling.log_softmax")

# %% [markdown]
# ## From text to tokens
#
# A model does not see letters. A tokenizer cuts text into pieces from a fixed vocabulary and gives the id of each.
# Frequent text becomes long pieces, rare text short ones.

# %%
from minllm import LLM

llm = LLM()  # the bundled model; on a GPU if there is one, else with NumPy
text = "def read_lines(path):\n    with open(path"
token_ids = llm.tokenizer.encode(text)  # T integers
pieces = [llm.tokenizer.decode([token]) for token in token_ids]

print(f"{len(text)} characters, {len(token_ids)} tokens")
for token, piece in zip(token_ids, pieces):
    print(f"{token:5} {piece!r}")

# %% [markdown]
# !!! tip "Takeaway"
#     A tokenizer turns text into ids. Frequent text takes few of them.
#
# ## From tokens to vectors
#
# Each token id selects one row of a table, the embedding. That row of 320 numbers is the token's first vector.

# %%
embedding = llm.engine.model.weights.embedding  # [vocabulary, hidden]
print("embedding table [vocabulary, hidden] =", embedding.shape)
print("the tokens become [T, hidden] =", (len(token_ids), embedding.shape[1]))

# %% [markdown]
# Every kernel of this package also runs in a simulator, without a GPU. The simulator counts what the kernel does. This
# example uses a small table:

# %%
import numpy as np

from minllm.sim import tracing

rng = np.random.default_rng(0)
table = rng.standard_normal((50, 320)).astype(np.float32)  # [vocabulary, hidden]
ids = np.array([3, 1, 4], np.int32)  # [T]
out = np.empty((3, 320), np.float32)  # [T, hidden]
with tracing() as traces:
    lookup.embedding(ids, table, out)
print(traces[0])

# %% tags=["hide"]
assert np.array_equal(out, lookup.embedding_reference(ids, table))

# %% [markdown]
# (The launcher chose `embedding_vector_kernel`, a variant of the kernel above that moves 16 bytes per thread instead
# of one number.)
#
# It read 3 rows and wrote 3 rows, and did no arithmetic at all. An operation that only moves bytes is limited by memory
# alone, however fast the arithmetic is.
#
# !!! tip "Takeaway"
#     An embedding selects rows of a table. It moves bytes and computes nothing.
#
# ## From vectors to logits
#
# Between the embedding and the logits are the layers. In each layer, attention lets every token look at the tokens
# before it. Then the feed-forward processes each token's vector by itself. Both results are added to that vector. It
# has 320 numbers throughout, and is called the hidden state.
#
# The forward pass of every model that minllm runs fits on one page of code. Read it once now, and again at the end
# of the course:

# %% tags=["hide-input"]
from minllm.models import decoder

show_source(decoder.forward)

# %% tags=["hide-input"]
show_source(decoder.hidden_states, folded="The loop over the layers")

# %%
logits = llm.logits(token_ids)  # [T, vocabulary], float32
print("logits", logits.shape)

# %% [markdown]
# Row $i$ scores what may follow token $i$. The softmax turns a row into probabilities, which are positive and sum to
# 1:
#
# $$p_v = \frac{e^{x_v - m}}{\sum_w e^{x_w - m}}, \qquad m = \max_w x_w$$
#
# Subtracting $m$ does not change the result, and keeps the exponentials from overflowing. Lesson 3 comes back to it.


# %%
def softmax(x):  # [..., vocabulary]
    shifted = np.exp(x - x.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


probabilities = softmax(logits)  # [T, vocabulary]

# %% tags=["fold"]
from minllm.course import Bar, bars

likeliest = np.argsort(-probabilities[-1])[:8]
bars(
    [
        Bar(
            repr(llm.tokenizer.decode([int(token)])),
            100 * float(probabilities[-1, token]),
        )
        for token in likeliest
    ],
    unit="%",
    title=f"What may follow {text[-14:]!r}",
    caption="Computed by the bundled model when this page was built.",
)

# %% [markdown]
# !!! tip "Takeaway"
#     Each position gets one vector, and at the end one score per token of the vocabulary.
#
# ## How good is a model? Bits per byte
#
# Give the model real text. At every position, look up the probability that it gave to the token that came next. A token
# of probability $p$ costs $-\log_2 p$ bits: 0 if it was certain, 12 for a blind guess among 4,096. The sum over a text,
# divided by its bytes, is its bits per byte. Unlike figures per token, it can be compared between models with different
# tokenizers.

# %%
import minllm

sample = minllm.held_out_text()[:2000]  # Python code that the model has never seen
sample_ids = np.array(llm.tokenizer.encode(sample))  # [T]
p = softmax(llm.logits(sample_ids.tolist()))  # [T, vocabulary]
bits = -np.log2(
    p[np.arange(len(sample_ids) - 1), sample_ids[1:]]
)  # [T - 1]: row i is about token i + 1
print(
    f"{bits.mean():.2f} bits per token, {bits.sum() / len(sample.encode()):.2f} bits "
    "per byte"
)

# %% tags=["fold"]
first = 24
bars(
    [
        Bar(repr(llm.tokenizer.decode([int(token)])), float(cost))
        for token, cost in zip(sample_ids[1 : first + 1], bits[:first])
    ],
    unit="bits",
    title="What each token cost, in order",
    limit=12,
    limit_name="a blind guess:",
    caption="The beginning of the held-out text. Where there is no choice the model "
    "is nearly certain.",
)

# %% [markdown]
# The same measure over the whole held-out text is recorded, for this model and for a smaller one:

# %%
from minllm.course import listing, recorded

print(listing(recorded("bits a byte")))

# %% [markdown]
# !!! tip "Takeaway"
#     Bits per byte measure how well a model predicts real text, whatever its tokenizer.
#
# ## Two phases
#
# An engine writes text by choosing a token from the last row of the logits, appending it, and calling the model again.
# What earlier tokens contribute to attention never changes, so it is kept in the KV cache. The work therefore has two
# phases.
#
# | | prefill | decode |
# | --- | --- | --- |
# | what | the whole prompt at once | one new token |
# | tokens in a forward pass | T, for example 512 | 1 |
# | each weight matrix times | a matrix `[T, hidden]`: GEMM | a vector `[1, hidden]`: GEMV |
# | happens | once | once per token written |
# | you notice it as | time to first token (TTFT) | time per output token (TPOT) |
#
# Both read every weight once. Prefill does T times as much arithmetic with each weight as decode does. So the
# arithmetic intensity, the operations per byte moved, is about T in prefill and about 1 in decode.

# %%
from minllm.costs import decode_step, parameter_count, prefill

config = llm.engine.model.config
assert round(parameter_count(config) / 1e6, 2) == 7.95  # million numbers, as said above
decode_cost, prefill_cost = (
    decode_step(config, context=512),
    prefill(config, tokens=512),
)
for name, cost in (("decode", decode_cost), ("prefill", prefill_cost)):
    megabytes, megaflops = cost.bytes / 1e6, cost.flops / 1e6
    print(
        f"{name:8} {megabytes:6.1f} MB {megaflops:8.1f} MFLOP "
        f"{cost.arithmetic_intensity:7.2f} FLOP per byte"
    )

# %% tags=["hide-input"]
guess.against(
    decode_bytes=decode_cost.bytes,
    decode_flops=decode_cost.flops,
    prefill_flops=prefill_cost.flops,
    prefill_bytes_times=prefill_cost.bytes / decode_cost.bytes,
)

# %% [markdown]
# A GPU can do hundreds of operations in the time that a byte takes to arrive. Decode needs one. That is why a single
# sequence leaves a GPU nearly idle, and why so much of this course is about bytes.
#
# !!! tip "Takeaway"
#     Prefill uses each weight for many tokens, decode for one. So decode is limited by memory.
#
# ## Run it

# %%
from minllm import SamplingParams

prompt = minllm.held_out_text()[:1500]
result = llm.generate(prompt, SamplingParams(max_tokens=24, temperature=0.0))[0]
metrics = result.metrics
print(
    f"prompt of {metrics.prompt_tokens} tokens: first token after "
    f"{1e3 * metrics.time_to_first_token:.0f} ms"
)
print(f"then {metrics.decode_tokens_per_second:.0f} tokens per second")

# %% tags=["fold"]
from minllm.course import Span, machine_line, timeline

first_ms = 1e3 * metrics.time_to_first_token
step_ms = 1e3 / metrics.decode_tokens_per_second
spans = [Span("prefill", 0.0, first_ms, f"{metrics.prompt_tokens} tokens")]
spans += [
    Span("decode", first_ms + i * step_ms, first_ms + (i + 1) * step_ms, colour=1)
    for i in range(metrics.generated_tokens - 1)
]
timeline(
    spans,
    "ms",
    "One request: the prompt at once, then a token at a time",
    caption=f"Decode steps drawn equally long; {machine_line()}.",
)

# %% [markdown]
# ## Measured against predicted
#
# On a roofline, the slope is the limit set by memory, and the flat part is the limit set by arithmetic. The rings show
# what the roof allows at the intensity of each phase. The dots show what minllm reached on an H200 with the shape of a
# model of 8 billion parameters. The figures come from the record, not from your machine.

# %% tags=["fold"]
from minllm.course import Dot, load_record, roofline
from minllm.models.shapes import named_config

record = load_record()
tb_s, tflops = record["ceilings"]["copy_tb_s"], record["ceilings"]["bf16_tflops"]
shape = named_config("llama-3.1-8b")
dots = []
for name, cost, tokens in (
    ("decode", decode_step(shape, context=576), 1),
    ("prefill", prefill(shape, tokens=512), 512),
):
    (row,) = recorded(name, "llama-3.1-8b")
    intensity = cost.arithmetic_intensity
    dots.append(Dot("", intensity, min(tflops, tb_s * intensity), measured=False))
    dots.append(
        Dot(
            f"{name}: {row.value:,.0f} tokens/s",
            intensity,
            cost.flops * row.value / tokens / 1e12,
            colour=1,
        )
    )
roofline(
    dots,
    tb_s,
    tflops,
    "The two phases of an 8B model, batch 1",
    caption=f"Prompt 512, bfloat16; {row.label}.",
)

# %% [markdown]
# Decode is on the slope, at about 1 FLOP per byte: faster arithmetic would not help it. Prefill is right of the slope,
# and arithmetic is its limit.
#
# ## Exercises
#
# *Perplexity* is another measure of a model: exp of the mean of $-\ln p$ over the tokens. A model that hesitates between 6
# equally likely tokens has perplexity 6. The package computes it in `Scorer`, window by window.

# %% tags=["hide-input"]
show_exercises("engine.perplexity")

# %% [markdown]
# ## A detective case: worse than chance
#
# A colleague measures the model in a hurry, and reports that it is useless. This is the measurement:

# %%
suspicious = -np.log2(p[np.arange(len(sample_ids) - 1) + 1, sample_ids[1:]])
print(f"{suspicious.mean():.2f} bits per token, where we found {bits.mean():.2f}")

# %% tags=["hide"]
assert suspicious.mean() > 12

# %% [markdown]
# A blind guess among 4,096 tokens costs 12 bits. How can a model know *less* than nothing? Compare the line with ours
# above, and say what it measures.
#
# ??? question "What happened?"
#
#     It takes row $i + 1$ for token $i + 1$. That row was computed *after* the model saw token $i + 1$, and scores
#     token $i + 2$. So the measurement uses the probability that a token repeats itself. Repeats are rare, and the
#     model has learned that, so it gives them less than a blind guess would. A figure above 12 bits never means that a
#     model is too weak. It means that two arrays are out of step.

# %% [markdown]
# ## Problems
#
# ??? question "1. A model has 70 billion weights in bfloat16. How many bytes does a decode step read, and how long does that take at 4 TB/s?"
#     140 GB, and 140 / 4,000 s = 35 ms per token: 29 tokens per second at most, however fast the arithmetic.
#
# ??? question "2. A token had probability 1/8 in one model and 1/2 in another. How many bits did it cost in each?"
#     3 bits and 1 bit. A text of 100 such tokens costs 300 bits in one model and 100 in the other.
#
# ??? question "3. Model A has 2.9 bits per token and 4 bytes per token on average, model B 2.4 bits per token and 3 bytes. Which is better?"
#     Compare per byte: A needs 0.725 bits per byte, B 0.8. A is better, although its figure per token is worse: its
#     tokens are longer.
#
# ??? question "4. An H200 costs 4 dollars per hour, and one user gets 200 tokens per second. What do a million tokens cost?"
#     1,000,000 / 200 = 5,000 s = 1.39 hours, so 5.56 dollars. A batch of 50 at nearly the same speed would bring that
#     to about 11 cents.
#
# ??? question "5. Which hardware would help prefill of 2,048 tokens, and which decode: twice the bandwidth, or twice the FLOP/s?"
#     Prefill has about 2,048 FLOP per byte, far right of the ridge of a few hundred: twice the FLOP/s. Decode has
#     about 1: twice the bandwidth. A chip that doubles only one of them halves only one of TTFT and TPOT.
#
# ## What next
#
# The timeline shows that a request is mostly decode, and the roofline shows that decode is bound by memory: a token
# takes at least as long as reading the weights. To see what a GPU does with a byte, you have to write a program for it.
# That is the next lesson: your first kernel.
#
# ## Sources
#
# - A. Vaswani et al., "Attention Is All You Need", NeurIPS 2017, section 3: the layers.
# - C. E. Shannon, "A Mathematical Theory of Communication", 1948: bits as the measure of surprise.
# - S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52 (2009): the two limits in one picture.
# - R. Pope et al., "Efficiently Scaling Transformer Inference", MLSys 2023: the two phases and their costs.
