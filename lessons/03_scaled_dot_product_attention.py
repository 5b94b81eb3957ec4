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
# # 3. Scaled dot-product attention
#
# Attention is the step in which tokens look at each other; everything else in a model works on one token at a time. Its
# cost grows with the square of the text's length. In this lesson you compute it with pen and paper, then with kernels,
# and find out what is wrong with the obvious way to write it.
#
# ```mermaid
# flowchart LR
#     Q["Q<br/>[T, d]"] --> S["S = Q Kᵀ<br/>[T, T]"]
#     K["K<br/>[T, d]"] --> S
#     S --> P["P = softmax(S / √d)<br/>row by row<br/>[T, T]"]
#     P --> O["out = P V<br/>[T, d]"]
#     V["V<br/>[T, d]"] --> O
# ```
#
# $$S = Q K^T \qquad P = \mathrm{softmax}\!\left(\frac{S}{\sqrt{d}}\right) \qquad \mathrm{out} = P V$$
#
# This kernel has one thread per query. It is slow, but it is all of attention:

# %%
import math

from numba import cuda, float32

from minllm.runtime.kernel import kernel


@kernel
def attention_kernel(Q, K, V, out, scale):  # Q, K, V, out: [T, d]
    t = cuda.threadIdx.x  # one thread per query
    maximum = float32(-math.inf)
    for key in range(t + 1):  # (1)!
        score = float32(0)
        for i in range(Q.shape[1]):
            score += Q[t, i] * K[key, i]
        maximum = max(maximum, score * scale)
    total = float32(0)
    for key in range(t + 1):
        score = float32(0)  # (2)!
        for i in range(Q.shape[1]):
            score += Q[t, i] * K[key, i]
        weight = math.exp(score * scale - maximum)
        total += weight
        for i in range(V.shape[1]):
            out[t, i] += weight * V[key, i]  # out is 0 at first
    for i in range(V.shape[1]):
        out[t, i] /= total  # (3)!


# %% [markdown]
# 1. The causal mask: a token sees itself and the tokens before it.
# 2. The score is computed a second time, because a thread has no room for a row of scores. This lesson is about where
#    to keep them.
# 3. Only this division makes the weights sum to 1.
#
# **What you will be able to do**
#
# - compute attention of four tokens by hand, mask included, and give the shape of every array on the way;
# - say why scores are divided by $\sqrt{d}$, and why a softmax subtracts the maximum;
# - count the bytes of the score matrix, and say at which length they become a problem.
#
# You need [lesson 1](01_what_a_language_model_computes.py) for tokens and softmax, and [lesson
# 2](02_your_first_kernel.py) for grid, block and thread.
#
# ## Predict
#
# A model of 8 billion parameters has 32 attention heads in each layer, each 128 numbers wide. It reads a prompt of
# 8,192 tokens. In every head, attention compares each token with itself and all tokens before it.

# %% tags=["hide-input"]
from minllm.course import Prediction

guess = Prediction(
    score_bytes="All these scores, stored as a full T x T square of 4-byte numbers: how many bytes in one layer?",
    input_bytes="How many bytes do queries, keys and values of the layer take? "
    "(2-byte numbers, 8 heads of keys and values)",
    flops_per_byte="How many floating-point operations per byte of scores that moves?",
)
guess.ask()

# %% [markdown]
# ## Queries, keys and values
#
# Three weight matrices turn each token's hidden state into three vectors:
#
# - a **query** $q$: what it is looking for;
# - a **key** $k$: what it can be found by;
# - a **value** $v$: what it passes on to the tokens that find it.
#
# A token compares its query with the keys of all tokens up to its own. The more alike two vectors are, the larger
# their dot product. The softmax turns these scores into weights, positive and summing to 1, and the result is the
# mean of the values with these weights.
#
# !!! tip "Takeaway"
#     Queries are compared with keys; the weights that result mix the values.
#
# ## By hand, with four tokens
#
# Take $T = 4$ tokens and heads of $d = 4$ numbers, so that $\sqrt{d} = 2$. Compute the last row on paper before you run
# the cell.

# %%
import numpy as np

Q = np.float32([[2, 0, 0, 0], [0, 2, 0, 0], [2, 2, 0, 0], [0, 2, 2, 0]])  # [T, d]
K = np.float32([[1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0]])  # [T, d]
V = np.float32([[4, 0, 0, 1], [0, 4, 0, 1], [0, 0, 4, 1], [4, 4, 4, 1]])  # [T, d]

S = Q @ K.T  # [T, T]: row i holds the scores of query i with every key
print(S)

# %% [markdown]
# Row 3, for example: the dot product of $q_3 = (0, 2, 2, 0)$ is 0 with $k_0$, and 2 with each of $k_1$, $k_2$ and
# $k_3$.
#
# **The mask.** A model writes from left to right: when it generates token 1, token 2 does not exist yet. So the scores
# of later tokens are set to $-\infty$, and $e^{-\infty} = 0$ gives them no weight. A triangle is left.

# %% tags=["fold"]
from minllm.course import heat_map

T = len(S)
seen = np.tril(np.ones((T, T), bool))  # [T, T]: row i sees columns 0 to i
heat_map(
    np.where(seen, S / 2, np.nan),
    "S / 2, with the causal mask",
    row_names=[f"token {i} asks" for i in range(T)],
    column_names=[f"k{i}" for i in range(T)],
    show_values=True,
    caption="Empty cells are masked. They are not zero: they do not take part.",
)

# %% [markdown]
# **The softmax.** For scores of 0, 1 and 2 you need three numbers: $e^0 = 1$, $e^1 = 2.72$ and $e^2 = 7.39$.
#
# | row | scores that it sees, halved | exponentials | their sum | weights |
# | --- | --- | --- | --- | --- |
# | 0 | 1 | 2.72 | 2.72 | 1 |
# | 1 | 0, 1 | 1, 2.72 | 3.72 | 0.27, 0.73 |
# | 2 | 1, 1, 2 | 2.72, 2.72, 7.39 | 12.83 | 0.21, 0.21, 0.58 |
# | 3 | 0, 1, 1, 1 | 1, 2.72, 2.72, 2.72 | 9.15 | 0.11, 0.30, 0.30, 0.30 |
#
# **The mean.** Row 2 of the result is $0.21\, v_0 + 0.21\, v_1 + 0.58\, v_2 = (0.85, 0.85, 2.30, 1)$. The last
# element of every value is 1 here, so the last element of every result is the sum of the weights: 1.

# %%
exponentials = np.exp(np.where(seen, S / 2, -np.inf))  # [T, T]
P = exponentials / exponentials.sum(axis=1, keepdims=True)  # [T, T], rows add up to 1
out = P @ V  # [T, d]
print(np.round(P, 2))
print(np.round(out, 2))

# %% tags=["hide"]
assert np.allclose(out[2], [0.85, 0.85, 2.30, 1], atol=0.01)

# %% [markdown]
# That is all of attention. The rest of this lesson is about real numbers, many heads, and speed.
#
# ## Why divide by the square root of d?
#
# A dot product of two vectors of $d$ random numbers is a sum of $d$ random terms, and grows like $\sqrt{d}$. The
# softmax depends on differences: of the scores 30 and 20 the first gets $e^{10}$ times the weight of the second. So
# with wide heads one key would get nearly all the weight, by chance. Dividing by $\sqrt{d}$ brings the scores back to a
# spread of about 1, for any $d$.

# %% tags=["fold"]
from minllm.course import curves
from minllm.kernels.attention.reference import softmax_in_place

rng = np.random.default_rng(0)


def largest_weight(width, scale):
    """The mean over 300 random queries of the largest of their 16 weights."""
    queries = rng.standard_normal((300, width))  # [300, d]
    keys = rng.standard_normal((300, 16, width))  # [300, 16, d]
    scores = np.einsum("qd,qkd->qk", queries, keys)  # [300, 16]
    return float(softmax_in_place(scores * scale).max(axis=1).mean())


widths = (4, 8, 16, 32, 64, 128, 256)
lines = {
    "not divided": [(width, largest_weight(width, 1)) for width in widths],
    "divided by √d": [(width, largest_weight(width, width**-0.5)) for width in widths],
}
assert lines["not divided"][-1][1] > 0.8 and lines["divided by √d"][-1][1] < 0.4
curves(
    lines,
    "width of the head, d",
    "largest of 16 weights",
    "How much of the attention one random key gets",
    log_x=True,
    caption="Random queries and keys, computed when this page was built. An even "
    "share would be 1/16.",
)

# %% [markdown]
# !!! tip "Takeaway"
#     Dividing by $\sqrt{d}$ keeps scores equally large for every $d$, so that no key takes all the weight.
#
# ## Write your own
#
# The weights of a token are the softmax of its scores. Write it in place, for every row at once. The task asks you to
# subtract the row's maximum; the next section shows why.

# %% tags=["hide-input"]
from minllm.course import show_exercises

show_exercises("attention.softmax")

# %% [markdown]
# ## Why subtract the maximum?
#
# float32 ends at $3.4 \cdot 10^{38}$, and $e^{89}$ is more than that. A score of 100 is not unusual:

# %%
scores = np.float32([100, 99, 0])
with np.errstate(over="ignore", invalid="ignore"):
    naive = np.exp(scores) / np.exp(scores).sum()
shifted = np.exp(scores - scores.max())
print("as the formula stands:  ", naive)
print("maximum subtracted first:", shifted / shifted.sum())

# %% tags=["hide"]
assert np.isnan(naive).any() and np.isclose(
    shifted[0] / shifted.sum(), 0.731, atol=0.001
)

# %% [markdown]
# Multiplying numerator and denominator by $e^{-m}$ does not change the result, and moves the largest exponent to 0. The
# largest term is then exactly 1, so nothing overflows and the sum cannot be 0. (In a row that sees no key at all, $m$
# is $-\infty$, and $-\infty - (-\infty)$ is not a number. The package's softmax handles that row too, as your
# exercise above does.) This is attention in NumPy, the reference for the tests of all kernels:

# %% tags=["hide-input"]
from minllm.course import show_source
from minllm.kernels.attention import reference

show_source(
    reference.attend,
    notes={
        "group = heads // kv_heads": "Heads in groups: next section.",
        "np.matmul(grouped, keys": "S = Q Kᵀ, for all heads at once.",
        "-np.inf": "The mask.",
        "softmax_in_place": "P, in the memory of S.",
        "np.matmul(probabilities": "out = P V.",
    },
)

# %% [markdown]
# !!! tip "Takeaway"
#     Subtracting the maximum changes no weight and prevents overflow.
#
# ## Heads, and groups of heads
#
# A single attention head can look for only one kind of thing. So a layer has several in parallel, called heads, each with its own queries,
# keys and values, and joins their results. Queries are then `[T, heads, head_dim]`, and there is one matrix of scores
# per head.
#
# Keys and values must be kept for later tokens, in the KV cache of [lesson 8](08_the_kv_cache.py). To keep fewer,
# neighbouring query heads share one head of keys and values: grouped-query attention. Query head $h$ reads KV
# head $\lfloor h / \mathrm{group} \rfloor$.
#
# | | query heads | KV heads | called |
# | --- | ---: | ---: | --- |
# | GPT-2 | 12 | 12 | multi-head attention |
# | Llama-3.1-8B | 32 | 8 | grouped-query attention, groups of 4 |
# | the bundled model | 5 | 1 | multi-query attention |
#
# !!! tip "Takeaway"
#     Several query heads can share one head of keys and values. The cache gets smaller by that factor.
#
# ## A look into a real model
#
# What do heads look for? The bundled model reads a few lines of Python, and this code keeps the attention weights of
# every layer and head. The wrapper does not change what the model computes.

# %% tags=["fold"]
from minllm import LLM

llm = LLM(device="cpu")
text = """class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)
"""
token_ids = llm.tokenizer.encode(text)  # T integers
T = len(token_ids)
weights = []  # one [heads, T, T] per layer
attention = llm.engine.ops.attention


def observed(query, layer_cache, batch, config):  # query [T, heads, head_dim]
    keys = reference.gather_context(
        layer_cache.key, batch.block_tables[0], 0, T
    )  # [T, kv_heads, head_dim]
    keys = np.repeat(
        keys.astype(np.float32), config.heads // config.kv_heads, axis=1
    )  # [T, heads, head_dim]
    scores = (
        np.einsum("qhd,khd->hqk", query.astype(np.float32), keys) * config.scale
    )  # [heads, T, T]
    scores[:, ~np.tril(np.ones((T, T), bool))] = -np.inf
    weights.append(softmax_in_place(scores))
    return attention(query, layer_cache, batch, config)


llm.engine.ops.attention = observed
llm.logits(token_ids)
llm.engine.ops.attention = attention
print(f"{len(weights)} layers, each with weights [heads, T, T] = {weights[0].shape}")


# %% tags=["fold"]
def name(token):
    """A token as a label: spaces and line ends made visible."""
    return (
        llm.tokenizer.decode([token]).replace("\n", "⏎").replace("    ", "⇥")
        or "(start)"
    )


def attention_map(layer, head, title, series):
    shown = [name(token) for token in token_ids]
    caption = f"Layer {layer}, head {head}. A row looks, a column is looked at."
    return heat_map(
        weights[layer][head], title, shown, shown, caption=caption, series=series
    )


attention_map(1, 4, "This head looks one token back", 0)

# %% tags=["fold"]
attention_map(2, 4, "This head looks for the same token, earlier in the text", 1)

# %% tags=["fold"]
attention_map(
    4, 0, "This head mostly looks at the first token: it has nothing to do here", 2
)

# %%
before = np.diagonal(weights[1][4], offset=-1)[1:].mean()
first = weights[4][0][2:, 0].mean()
print(f"layer 1, head 4 gives {before:.0%} of its weight to the token just before")
print(f"layer 4, head 0 gives {first:.0%} to the very first one")

# %% tags=["hide"]
assert before > 0.5 and first > 0.8

# %% [markdown]
# Nobody programmed these patterns. The first two together can find an earlier copy of the same token, and see what came
# after it. The third is known as an attention sink: weights must sum to 1, so a head that finds nothing puts its weight
# on the first token.
#
# ## Three kernels, with the scores in memory
#
# The kernel at the top computes every score twice. The usual first version keeps the scores instead: it has one kernel
# per formula, and the scores are in memory between kernels. It has more threads (one per score, not one per query), but
# it moves more bytes.

# %% tags=["hide-input"]
from minllm.kernels.attention.ladder import materialized

show_source(
    materialized.scores_kernel,
    folded="S = Q Kᵀ: one thread per score",
    notes={
        "key = cuda.blockIdx.x": "A thread for each key.",
        "cuda.blockIdx.z // heads": "The grid's other dimensions: the query's row; sequence and head together.",
        "kv_head = kv_head_of": "Heads in groups.",
        "token, first, stop": "Which row of the batch this is, and which keys it sees: from first up to, but without, stop.",
        "if first <= key": "The mask: beyond the row's own position nothing is computed, and nothing stored.",
        "total += ": "The dot product: d multiplications and d additions. K lies transposed, so that threads beside each other "
        "read numbers beside each other.",
    },
)

# %% tags=["hide-input"]
show_source(
    materialized.softmax_kernel,
    folded="P = softmax(S): one block per row",
    notes={
        "partial = cuda.shared.array": "One number a thread, for the block's maximum and then for its sum.",
        "maximum = max(maximum, scores": "First pass over the row: every thread finds the maximum of its keys.",
        "while active > 0": "Half of the threads add the other half's numbers, then half of those: a tree.",
        "all threads have read it": "A barrier that is easy to forget. Without it, a quick thread would store its sum in "
        "partial[0] before a slow one has read the maximum there.",
        "weight = ex2": "Second pass: exponentials, as powers of 2, which the hardware has an instruction for. The scale is "
        "multiplied by log₂ e beforehand, so the result is the same.",
        "scores[token, head, key] *= inverse": "Third pass: the division.",
    },
    docstring=False,
)

# %% tags=["hide-input"]
show_source(
    materialized.make_weighted_values_kernel,
    folded="out = P V: one thread per element of the result",
    notes={
        "dim = scores.shape[1], cuda.threadIdx.x": "One thread per element of the head.",
        "block = block_tables": "Where the value lies: the cache is cut into blocks, which lesson 11 is about.",
        "total += scores": "The weighted mean.",
    },
)

# %% [markdown]
# ## Run it
#
# First our four tokens: the kernel from the top in the simulator, then the three kernels, on a GPU if there is one. The
# three kernels take heads of 8, 16, 24, ... numbers, so each vector gets four zeros, which do not change the dot
# products. The scale stays $1/2$.

# %%
from minllm.course import has_gpu

alone = np.zeros((4, 4), np.float32)
attention_kernel.simulate[1, 4](Q, K, V, alone, float32(0.5))

if has_gpu():
    from minllm.ops.cuda_ops import CudaOps as Place
else:
    from minllm.ops.numpy_ops import NumpyOps as Place
place = Place()


def padded(matrix):  # [4, 4] -> [4, 1, 8]: tokens, one head, head_dim
    return np.pad(matrix, ((0, 0), (0, 4)))[:, None, :]


tokens = np.zeros((4, 1, 8), np.float32)
arrays = (
    padded(Q),
    padded(K)[None],
    padded(V)[None],
    tokens,
)  # the cache is one block: [1, 4, 1, 8]
four = (
    np.int32([0, 4]),
    np.int32([4]),
    np.int32([[0]]),
)  # rows of the sequence, keys in it, its blocks
on_place = [place.array(array) for array in (*arrays, *four)]


def attend(
    query, key_cache, value_cache, out, query_start, context_lens, block_tables, scale
):
    """The three kernels, and before them one that transposes K; with memory for the
    transposed K and the scores."""
    shapes = materialized.workspace_shapes(query, key_cache, block_tables)
    workspace = {
        name: place.empty(*shape_and_dtype) for name, shape_and_dtype in shapes.items()
    }
    inputs = (
        query,
        key_cache,
        value_cache,
        out,
        query_start,
        context_lens,
        block_tables,
    )
    return lambda: materialized.attention(*inputs, scale, workspace=workspace)


attend(*on_place, scale=0.5)()
result = place.to_host(on_place[3])[:, 0, :4]  # [T, d]
print(np.round(result, 2))

# %% tags=["hide"]
assert np.allclose(alone, out, atol=1e-4)
assert np.allclose(result, out, atol=1e-4)

# %% [markdown]
# The numbers are those on paper. Now a larger case in the simulator, to count the bytes that it moves: 8 tokens, 4
# query heads, 2 KV heads, 16 numbers per head.

# %%
from minllm.sim import tracing

T, heads, kv_heads, head_dim = 8, 4, 2, 16
query = rng.standard_normal((T, heads, head_dim)).astype(np.float32)
key_cache, value_cache = rng.standard_normal((2, 1, T, kv_heads, head_dim)).astype(
    np.float32
)
batch = np.int32([0, T]), np.int32([T]), np.int32([[0]])
with tracing() as traces:
    materialized.attention(
        query,
        key_cache,
        value_cache,
        np.empty_like(query),
        *batch,
        scale=head_dim**-0.5,
    )

pairs = heads * T * (T + 1) // 2  # of a query and a key that it sees
print(f"{pairs} visible pairs, so one score each is {4 * pairs:,} bytes")
for trace in traces[1:]:  # the first one transposes K
    moved = trace.arrays["scores"]
    print(
        f"{trace.kernel:24} scores read {moved.read.bytes:>6,} bytes, written "
        f"{moved.write.bytes:>6,} bytes"
    )

# %% tags=["hide"]
scores, softmax, values = (trace.arrays["scores"] for trace in traces[1:])
assert scores.write.bytes == 4 * pairs
assert softmax.read.bytes == 3 * 4 * pairs and softmax.write.bytes == 2 * 4 * pairs
assert (
    values.read.bytes == head_dim * 4 * pairs and values.read.unique_bytes == 4 * pairs
)

# %% [markdown]
# Each score is written once by the first kernel, then read three times and written twice by the softmax, and then read
# by the third kernel, whose 16 threads per output row all read the same score in one trip to memory. That makes seven
# trips of 4 bytes: 28 bytes per pair of a query and a key. A pair takes $4d$ operations, $2d$ for $q \cdot k$ and $2d$
# for $p v$.
#
# !!! tip "Takeaway"
#     With the scores in memory, three kernels move 28 bytes per pair of a query and a key.
#
# ## The problem: a square
#
# Queries, keys and values grow with $T$. Scores grow with $T^2$.

# %%
T, heads, kv_heads, head_dim = 8192, 32, 8, 128  # the 8B model of the prediction
score_bytes = heads * T * T * 4  # the kernels keep a whole square; half of it is masked
input_bytes = (heads + 2 * kv_heads) * head_dim * T * 2
flops_per_byte = 4 * head_dim / 28

# %% tags=["hide-input"]
guess.against(
    score_bytes=score_bytes, input_bytes=input_bytes, flops_per_byte=flops_per_byte
)

# %% tags=["fold"]
lengths = [2**power for power in range(7, 18)]
curves(
    {
        "scores": [(length, heads * length**2 * 4 / 1e9) for length in lengths],
        "queries, keys, values and result": [
            (length, (2 * heads + 2 * kv_heads) * head_dim * length * 2 / 1e9)
            for length in lengths
        ],
    },
    "tokens in the prompt, T",
    "GB in one layer",
    "What attention keeps in memory",
    log_x=True,
    log_y=True,
    caption="Computed from the shapes: 32 query heads, 8 KV heads, 128 numbers each; "
    "scores in float32, "
    "the rest in bfloat16.",
)

# %% [markdown]
# At 8,192 tokens the scores of one layer take 8.6 GB. At 131,072 tokens, which Llama 3.1 allows, they would take
# 2.2 TB, fifteen times the memory of an H200. And they are only an intermediate result.
#
# !!! tip "Takeaway"
#     Inputs and outputs grow with the length, scores with its square.
#
# ## Measured against predicted
#
# If all seven trips go to memory, the arithmetic intensity is $4 \cdot 128 / 28 = 18$ FLOP per byte, at every length:
# far left of the ridge, so memory would be the limit. If the scores never went to memory, a prompt of 512 tokens would
# have more than 200. Both are drawn as rings. The dots were measured on an H200.

# %% tags=["fold"]
from minllm.course import Dot, load_record, recorded, roofline

record = load_record()
tb_s, tflops = record["ceilings"]["copy_tb_s"], record["ceilings"]["bf16_tflops"]
T = 512
flops = 4 * heads * head_dim * T * (T + 1) // 2  # of visible pairs
without_scores = flops / ((2 * heads + 2 * kv_heads) * head_dim * T * 2)
dots = []  # of the roofline
for name_of_dot, variant, intensity, series in (
    ("three kernels", "materialized", flops_per_byte, 0),
    ("one kernel", "flash_attention_2", without_scores, 1),
):
    (row,) = recorded(
        "prefill attention", "1x512, 32/8 heads, d 128, bfloat16", variant
    )
    dots.append(
        Dot("", intensity, min(tflops, tb_s * intensity), measured=False, colour=series)
    )
    dots.append(
        Dot(f"{name_of_dot}: {row.value:.2g}", intensity, row.value, colour=series)
    )
roofline(
    dots,
    tb_s,
    tflops,
    "Attention of a prompt of 512 tokens",
    caption=f"Dots: {row.label}; rings: what the roof allows. 32 query heads, 8 KV "
    "heads, 128 numbers each, bfloat16. "
    "The one kernel is FlashAttention-2, of lesson 7.",
)

# %% [markdown]
# The roof allows these three kernels dozens of times more than they reach. So the score matrix cannot be the only
# fault. At 512 tokens it is 34 MB, and fits in the 50 MB of an H200's L2 cache. Something else costs more here: for
# every multiplication a thread loads both factors from memory or cache, and it uses each of them once. There is no
# reuse, and no tensor core. Beware of explaining a measurement by the first good reason that you find.
#
# On a machine with a GPU, this cell measures yours:

# %%
(row,) = recorded(
    "prefill attention", "1x512, 32/8 heads, d 128, bfloat16", "materialized"
)
if has_gpu():
    import ml_dtypes

    from minllm.course import machine_line, timed

    shapes = (
        (T, heads, head_dim),
        (T // 16, 16, kv_heads, head_dim),
        (T // 16, 16, kv_heads, head_dim),
    )
    inputs = [
        place.array(rng.standard_normal(shape).astype(ml_dtypes.bfloat16))
        for shape in shapes
    ]
    blocks = np.arange(T // 16, dtype=np.int32)[
        None
    ]  # the cache's blocks of 16 keys, in order
    batch = [place.array(array) for array in (np.int32([0, T]), np.int32([T]), blocks)]
    seconds = timed(
        attend(
            *inputs,
            place.empty(shapes[0], ml_dtypes.bfloat16),
            *batch,
            scale=head_dim**-0.5,
        )
    )
    print(f"{flops / seconds / 1e12:.2f} TFLOP/s in bfloat16, {machine_line()}")
else:
    print("No GPU here: nothing was timed on this machine.")

# %% tags=["hide"]
assert row.value < tb_s * flops_per_byte / 30

# %% [markdown]
# ## Exercises
#
# Write the three steps yourself. The checker runs your code in the simulator and says what is wrong, and where. When
# they pass, the last two can generate text with the bundled model.

# %% tags=["hide-input"]
show_exercises("attention.scores", "attention.weighted_values")

# %% [markdown]
# ## A detective case

# %% tags=["hide-input"]
from minllm.course import show_case

show_case("clairvoyant")

# %% [markdown]
# ## Problems
#
# ??? question "1. Four tokens, head 64 wide. How many dot products does causal attention need in one head, and how many operations in all?"
#     1 + 2 + 3 + 4 = 10 pairs, with 4 · 64 = 256 operations each: 2,560. Without the mask it would be 16 pairs.
#
# ??? question "2. Scores of a row are 2, 2 and 2 after scaling. What are the weights? And for 1,000, 1,000 and 1,000?"
#     One third each, in both cases: the softmax subtracts the maximum. Without the subtraction the second row
#     overflows.
#
# ??? question "3. A model has 64 query heads and 8 KV heads of 128. How many bytes do the keys and values of 1,000 tokens take in one layer, in bfloat16? And with multi-head attention?"
#     2 · 8 · 128 · 2 bytes · 1,000 = 4.1 MB, and 8 times as much, 32.8 MB.
#
# ??? question "4. From which prompt length on do the float32 scores of one head no longer fit an L2 cache of 50 MB?"
#     T² · 4 bytes = 50 MB gives T = 3,535 tokens. With 32 heads at once it is 625 tokens, so the 512 tokens of this
#     page still fit.
#
# ??? question "5. The three kernels move 28 bytes per pair. For one layer's 32 heads and 8,192 tokens, how long would the bytes take at 4.2 TB/s, and the arithmetic at 800 TFLOP/s?"
#     32 · 8,192² / 2 pairs = 1.07 billion: 30 GB take 7.2 ms. The arithmetic, 512 operations each, is 0.55 TFLOP: 0.7
#     ms. If the scores are not written, attention can be ten times as fast, provided that the arithmetic runs on tensor
#     cores.
#
# ## What next
#
# Two things keep these kernels below the roof. The bytes show that the score matrix must not go to memory: [lesson
# 7](07_prefill_and_flash_attention.py) never writes it. The roofline shows that something else is worse: every
# multiplication loads both its factors, for a single use. To tell which of two limits binds a kernel, you need the
# roofline as a tool rather than a picture. That is [lesson 4](04_arithmetic_intensity_and_the_roofline.py).
#
# ## Sources
#
# - A. Vaswani et al., "Attention Is All You Need", NeurIPS 2017, section 3.2.
# - J. Ainslie et al., "GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints", EMNLP
#   2023, section 2.
# - N. Shazeer, "Fast Transformer Decoding: One Write-Head is All You Need", 2019: multi-query attention.
# - C. Olsson et al., "In-context Learning and Induction Heads", 2022: heads that look back, and two of them together.
# - G. Xiao et al., "Efficient Streaming Language Models with Attention Sinks", ICLR 2024, section 3.
# - M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", 2018: the passes over memory of a softmax.
