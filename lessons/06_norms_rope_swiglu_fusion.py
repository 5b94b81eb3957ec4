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
# # 6. Norms, RoPE, SwiGLU, and fusion
#
# Between its GEMMs a layer has small steps: it rescales vectors, rotates them by their position, and lets the result of
# one GEMM gate that of another. They do hardly any arithmetic, and yet take time, because every byte must be read and
# written. This lesson explains these element-wise steps, and the one way to make them cheap: do them together.
#
# ```mermaid
# flowchart LR
#     subgraph apart["apart: 5 arrays move"]
#         x1["x, residual"] --> add["add"] --> s1["sum, to memory"] --> norm["norm"] --> o1["out"]
#     end
#     subgraph together["fused: 4 arrays move"]
#         x2["x, residual"] --> both["add and norm,<br/>sum in registers"] --> o2["sum, out"]
#     end
# ```
#
# $$r = x + \mathrm{residual} \qquad \mathrm{out} = \frac{r}{\sqrt{\frac{1}{H}\sum_i r_i^2 + \epsilon}} \cdot w$$
#
# This kernel does both, with one block per token. Each thread keeps its numbers of the row in registers between the sum
# and the scaling:

# %%
import math

from numba import cuda, float32

from minllm.runtime.kernel import kernel

THREADS, HELD = 64, 4  # threads per block, numbers per thread: rows of 256


@kernel
def add_norm_kernel(x, residual, weight, out):  # x, residual, out: [tokens, 256]
    token, thread = cuda.blockIdx.x, cuda.threadIdx.x
    held = cuda.local.array(HELD, float32)  # registers
    squares = cuda.shared.array(THREADS, float32)
    squares[thread] = 0
    for j in range(HELD):
        i = thread + j * THREADS
        held[j] = x[token, i] + residual[token, i]
        residual[token, i] = held[j]  # the next layer adds to it
        squares[thread] += held[j] * held[j]
    step = THREADS // 2
    while step > 0:  # a tree: squares[0] becomes the sum
        cuda.syncthreads()
        if thread < step:
            squares[thread] += squares[thread + step]
        step //= 2
    cuda.syncthreads()
    scale = 1 / math.sqrt(squares[0] / (THREADS * HELD) + 1e-5)
    for j in range(HELD):
        i = thread + j * THREADS
        out[token, i] = held[j] * scale * weight[i]


# %% [markdown]
# **What you will be able to do**
#
# - compute RMSNorm, LayerNorm, a rotary position and SwiGLU by hand, and say what each is for;
# - show that the score of a rotated query and key depends on their distance, and notice when a model was loaded with
#   the wrong layout;
# - count the bytes and launches that fusion saves, and say when it pays.
#
# You need [lesson 2](02_your_first_kernel.py) for kernels, [lesson 3](03_scaled_dot_product_attention.py) for queries
# and keys, and [lesson 4](04_arithmetic_intensity_and_the_roofline.py) for the roofline.
#
# ## Predict
#
# A layer adds the result of attention to the hidden state, and then normalises it: 16,384 tokens of 4,096 numbers in
# bfloat16.

# %% tags=["hide-input"]
from minllm.course import Prediction

guess = Prediction(
    apart_bytes="One kernel adds, a second one normalises: how many bytes move?",
    together_bytes="One kernel does both, and still writes the sum and its norm: how many bytes?",
    flops_per_byte="How many operations does it do per byte?",
    longer=(
        "A norm of one token moves 33 KB. What takes longer on an H200?",
        "moving these bytes",
        "a kernel that does nothing",
    ),
)
guess.ask()

# %% [markdown]
# ## Norms: why and how
#
# Each layer *adds* to the hidden state, so it grows from layer to layer. A matrix that was trained on small numbers
# would work badly with large ones. So each half of a layer first brings its input to a standard size. RMSNorm, the
# equation above, divides by the root of the mean square. LayerNorm, which is older, first subtracts the mean $\mu$, and
# adds a learned bias:
#
# $$\mathrm{LayerNorm}(x) = \frac{x - \mu}{\sqrt{\frac{1}{H}\sum_i (x_i - \mu)^2 + \epsilon}} \cdot w + b$$
#
# Llama and most models since use the first, GPT-2 the second. By hand, with $w = 1$, $b = 0$ and a tiny $\epsilon$:
#
# - $x = (3, 4, 0, 0)$: the mean square is $25 / 4$, its root $2.5$, so RMSNorm gives $(1.2, 1.6, 0, 0)$.
# - $x = (0, 0, 4, 4)$: the mean is 2, the mean square around it 4, its root 2, so LayerNorm gives $(-1, -1, 1, 1)$.
#
# Write the first one in NumPy, for all tokens at once:

# %% tags=["hide-input"]
from minllm.course import show_exercises

show_exercises("normalization.equation")

# %% [markdown]
# Now the kernels:

# %%
import numpy as np

from minllm.kernels.normalization.layer_norm import layer_norm
from minllm.kernels.normalization.rms_norm import rms_norm

ones, out = (
    np.ones(4, np.float32),
    np.empty((1, 4), np.float32),
)  # [hidden], [tokens, hidden]
rms_norm(np.float32([[3, 4, 0, 0]]), ones, out, 1e-6)
print("RMSNorm  ", np.round(out, 3))
assert np.allclose(out, [[1.2, 1.6, 0, 0]], atol=1e-4)
layer_norm(np.float32([[0, 0, 4, 4]]), ones, None, out, 1e-6)
print("LayerNorm", np.round(out, 3))
assert np.allclose(out, [[-1, -1, 1, 1]], atol=1e-4)

rng = np.random.default_rng(0)
x, before = rng.standard_normal((2, 3, 256)).astype(np.float32)  # [tokens, hidden]
weight, out, after = np.ones(256, np.float32), np.empty_like(x), before.copy()
add_norm_kernel.simulate[3, THREADS](x, after, weight, out)  # the kernel from the top

# %% tags=["hide"]
assert np.allclose(after, x + before)
assert np.allclose(
    out, after / np.sqrt(np.square(after).mean(1, keepdims=True) + 1e-5), atol=1e-5
)

# %% [markdown]
# All of these kernels ran in the simulator. Now a real model: the bundled one reads some code, while the cell records
# the size of the hidden state before and after each norm.

# %%
import minllm
from minllm import LLM

llm = LLM(device="cpu")
text = minllm.held_out_text()[:1500]
token_ids = llm.tokenizer.encode(text)  # T integers
before, after = [], []
add_norm = llm.engine.ops.add_norm


def size(rows):  # [T, hidden] -> the mean over the rows of their root mean square
    return float(np.sqrt(np.square(rows.astype(np.float32)).mean(axis=1)).mean())


def observed(x, residual, norm):  # [T, hidden] both
    normalized, total = add_norm(x, residual, norm)
    before.append(size(total))
    after.append(size(normalized))
    return normalized, total


llm.engine.ops.add_norm = observed
llm.logits(token_ids)
llm.engine.ops.add_norm = add_norm
print(
    f"{len(before)} norms; before the first {before[0]:.2f}, before the last "
    f"{before[-1]:.2f}"
)

# %% tags=["hide"]
assert before[-1] > 4 * before[0]

# %% tags=["fold"]
from minllm.course import curves

curves(
    {
        "before the norm": list(enumerate(before)),
        "after it": list(enumerate(after)),
    },
    "norms of the forward pass, in order",
    "root mean square",
    "The hidden state grows, the input of the matrices does not",
    log_y=True,
    caption="The bundled model: two norms in each of 6 layers, and a last one before "
    "the head.",
)

# %% [markdown]
# The learned weight $w$ then sets the size of each number.
#
# The engine's kernel is the one at the top with loads of 16 bytes, sums over a warp by exchanging registers, and any
# row length.

# %% tags=["hide-input"]
from minllm.course import show_source
from minllm.kernels.normalization import rms_norm as rms_norm_file

show_source(
    rms_norm_file.rms_norm_vector_kernel,
    folded="The engine's kernel, rms_norm_vector_kernel",
    notes={
        "load(x, row + i": "16 bytes per load: 8 numbers in bfloat16.",
        "load(residual": "The sum with the residual is formed here...",
        "store(residual": "...and kept, because the next layer adds to it.",
        "wait_for_predecessors()": "The kernel may start before the one that makes its input is done, and waits here: "
        "lesson 15.",
        "block_sum(": "The only step for which threads need each other.",
        "inverse_rms * weights": "Scaled in registers: the row is not read again.",
    },
)

# %% [markdown]
# !!! tip "Takeaway"
#     A norm brings every token to a standard size. The row is read once, and stays in registers.
#
# ## Positions: RoPE
#
# Attention compares a query with keys, and its result does not depend on their order. "Dog bites man" and "man bites
# dog" would be the same text. RoPE encodes the order by rotating the vectors.
#
# Take the numbers of a query in pairs, and think of each pair as an arrow in a plane. At position $p$ the arrow of
# pair $i$ is rotated by the angle $p\,\theta_i$:
#
# $$(a, b) \to (a \cos p\theta_i - b \sin p\theta_i,\;\; b \cos p\theta_i + a \sin p\theta_i)
# \qquad \theta_i = 10000^{-2i/d}$$
#
# Pair 0 rotates fast, one radian per position. The last of 32 pairs rotates 7,499 times more slowly, by
# $10000^{-62/64}$ radians. It is like a clock with many hands. By hand: the arrow $(1, 0)$, rotated by a quarter of a
# circle, is $(0, 1)$.

# %%
from minllm.kernels.rope.reference import rope_reference, rope_table

quarter = rope_table(
    2, 2, [np.pi / 2]
)  # [positions, 2]: for each position, cosine and sine of its angle
arrow = np.float32([[[1, 0]], [[1, 0]]])  # [tokens, heads, head_dim], one pair
print(np.round(rope_reference(arrow, np.int32([0, 1]), quarter)[:, 0], 3))

head_dim = 64
frequencies = 10000.0 ** (
    -np.arange(0, head_dim, 2) / head_dim
)  # [32], radians per position
cos_sin = rope_table(
    2048, head_dim, frequencies
)  # [positions, head_dim]: first half cosines, second half sines
full_circle = 2 * np.pi / frequencies  # positions per full turn of a pair
print(
    f"pair 0 is around after {full_circle[0]:.1f} positions, pair 31 after "
    f"{full_circle[31]:,.0f}"
)

# %% tags=["hide"]
assert round(frequencies[0] / frequencies[31]) == 7499

# %% tags=["fold"]
from minllm.course import heat_map

positions, pairs = np.arange(64), np.arange(32)
heat_map(
    (1 + cos_sin[:64, :32].T) / 2,
    "How far each pair is rotated, at each position",
    row_names=[f"pair {pair}" if pair % 4 == 0 else "" for pair in pairs],
    column_names=[str(position) if position % 8 == 0 else "" for position in positions],
    caption="Columns are positions 0 to 63. Full colour: back where it began; none: "
    "turned half around.",
)

# %% [markdown]
# **Why rotate?** The dot product of two rotated arrows depends only on the difference of their angles. So the score of
# a query at position $m$ and a key at position $n$ depends only on their distance, $m - n$.

# %%
query, key = rng.standard_normal((2, head_dim)).astype(np.float32)


def score(query_position, key_position, interleaved=False):
    both = np.stack([query, key])[:, None]  # [2 tokens, 1 head, head_dim]
    places = np.int32([query_position, key_position])
    turned = rope_reference(both, places, cos_sin, interleaved)[:, 0].astype(np.float64)
    return float(turned[0] @ turned[1])


for query_position, key_position in ((3, 0), (10, 7), (1003, 1000), (4, 0)):
    distance = query_position - key_position
    found = score(query_position, key_position)
    print(
        f"query at {query_position:4}, key at {key_position:4}, distance {distance}: "
        f"{found:8.4f}"
    )

# %% tags=["hide"]
assert np.isclose(score(3, 0), score(1003, 1000), atol=1e-3) and not np.isclose(
    score(3, 0), score(4, 0), atol=1e-3
)

# %% tags=["fold"]
table = np.array([[score(m, n) for n in range(12)] for m in range(12)])
heat_map(
    table - table.min(),
    "Score of one query and one key, for all pairs of positions",
    row_names=[f"query at {m}" for m in range(12)],
    column_names=[f"key at {n}" for n in range(12)],
    caption="Random vectors. The same colour along each diagonal: only the distance "
    "counts. (The mask is left out.)",
)

# %% tags=["hide-input"]
from minllm.kernels.rope.ladder import rope

show_source(
    rope.rope_kernel,
    folded="The kernel: a lane of a warp rotates a pair",
    notes={
        "position = positions[token]": "The token's position in its text, not in the batch.",
        "if interleaved else": "The two layouts of pairs, explained below.",
        "cosine, sine =": "From a table, made once. All heads of a token use the same.",
    },
)

# %% [markdown]
# **A famous mistake.** Which numbers make a pair? The paper takes neighbours, $(2i, 2i+1)$. Hugging Face checkpoints
# pair the first half with the second, $(i, i + d/2)$. Either layout is right if the weights were stored for it. With
# the wrong one nothing crashes, and no test of the kernel fails: the score still depends only on the distance. But the
# model gets worse:

# %%
import dataclasses


def bits_per_byte():
    """How much the text surprises the model: lesson 1."""
    return (
        float(np.log2(llm.perplexity(token_ids)))
        * (len(token_ids) - 1)
        / len(text.encode())
    )


layers = llm.engine.model.weights.layers
right = bits_per_byte()
for layer in layers:
    layer.attention.config = dataclasses.replace(
        layer.attention.config, interleaved=True
    )
wrong = bits_per_byte()
for layer in layers:
    layer.attention.config = dataclasses.replace(
        layer.attention.config, interleaved=False
    )
print(f"right layout {right:.2f} bits per byte, wrong layout {wrong:.2f}")

# %% tags=["hide"]
assert np.isclose(
    score(3, 0, interleaved=True), score(1003, 1000, interleaved=True), atol=1e-3
)
assert wrong > 1.5 * right

# %% [markdown]
# The model still knows which words are frequent, and its output looks a little like code. So such a mistake can go
# unnoticed for weeks. Measure bits per byte when you load a model.
#
# !!! tip "Takeaway"
#     RoPE rotates queries and keys, so that a score depends on their distance.
#
# ## SwiGLU: one GEMM gates another
#
# The other half of a layer is the feed-forward. In Llama it has three matrices. Two GEMMs read the same input. The
# result of one goes through SiLU and then scales the result of the other:
#
# ```mermaid
# flowchart LR
#     X["x<br/>[T, H]"] --> G["gate = x Wgᵀ<br/>[T, I]"]
#     X --> U["up = x Wuᵀ<br/>[T, I]"]
#     G --> S["silu(gate) · up<br/>[T, I]"]
#     U --> S
#     S --> D["· Wdᵀ<br/>[T, H]"]
# ```
#
# $$\mathrm{silu}(g) = \frac{g}{1 + e^{-g}}$$
#
# For a large positive $g$ this is nearly $g$ itself: the gate is open. For a large negative one it is nearly 0: the
# gate is shut. By hand, $\mathrm{silu}(0) = 0$ and $\mathrm{silu}(1) = 1 / 1.37 = 0.73$.

# %% tags=["fold"]
gates = np.linspace(-6, 6, 25)
curves(
    {
        "silu(g)": [(float(g), float(g / (1 + np.exp(-g)))) for g in gates],
        "max(0, g), the ReLU": [(float(g), float(max(0.0, g))) for g in gates],
    },
    "gate, g",
    "what the gate lets through",
    "SiLU is a ReLU without the kink",
    caption="Computed from the formulas.",
)

# %% tags=["hide-input"]
from minllm.kernels.activation import silu

show_source(
    silu.silu_and_multiply_vector_kernel,
    folded="The kernel, 16 bytes at a time",
    notes={
        "load(gate_up, token * 2": "The gate is the first half of the row...",
        "load(gate_up, (token * 2 + 1)": "...and up the second. The two loads do not wait for each other.",
        "sigmoid(gate[k])": "silu(g) = g · sigmoid(g).",
    },
)

# %% [markdown]
# !!! tip "Takeaway"
#     One GEMM is a gate for another; SiLU says how far it is open.
#
# ## What the small steps cost
#
# All of these steps read some bytes, do a few operations with each number, and write some bytes. The figures are from
# the docstrings of their kernels, in bfloat16:
#
# | step | reads | writes | FLOP per byte |
# | --- | --- | --- | ---: |
# | addition and RMSNorm | x, residual | residual, out | 0.6 |
# | RoPE | x | out | 0.75 |
# | SwiGLU's gate | gate, up | out | 1 |
#
# The ridge of an H200 is at hundreds of operations per byte. So arithmetic is free here, and only bytes matter.
#
# !!! tip "Takeaway"
#     Element-wise steps do about one operation per byte: only their bytes cost time.
#
# ## Fusion: together, not apart
#
# If two steps follow each other, the first writes a result that the second reads again. In one kernel the number stays
# in a register, which saves two trips to memory. That is fusion. The next cells count it: the steps apart, with one
# small kernel per operation, and the engine's fused kernels. The third pair rotates queries and keys and puts keys and
# values into the cache: apart this takes three launches, fused one, `qkv_rope_append`.

# %% tags=["fold"]

from minllm.kernels.activation.sigmoid import sigmoid
from minllm.runtime.kernel import kernel, launch

BLOCK = 64


@kernel
def add_kernel(x, residual):  # [n] both: residual += x
    i = cuda.blockIdx.x * BLOCK + cuda.threadIdx.x
    if i < x.size:
        residual[i] = float32(x[i]) + float32(residual[i])


@kernel
def silu_kernel(gate, out):  # [n] both
    i = cuda.blockIdx.x * BLOCK + cuda.threadIdx.x
    if i < out.size:
        g = float32(gate[i])
        out[i] = g * sigmoid(g)


@kernel
def multiply_kernel(activated, up, out):  # [n] each
    i = cuda.blockIdx.x * BLOCK + cuda.threadIdx.x
    if i < out.size:
        out[i] = float32(activated[i]) * float32(up[i])


def over(array):  # number of blocks that cover the array
    return -(-array.size // BLOCK)


# %% tags=["fold"]
from minllm.kernels.kv.ladder.append import append
from minllm.kernels.kv.qkv_rope_append import qkv_rope_append
from minllm.sim import tracing

tokens, hidden, heads, kv_heads, head_dim = 2, 256, 4, 2, 64
x, residual = rng.standard_normal((2, tokens, hidden)).astype(
    np.float32
)  # [tokens, hidden]
weight = np.ones(hidden, np.float32)
gate_up = rng.standard_normal((tokens, 2 * hidden)).astype(
    np.float32
)  # [tokens, 2 * intermediate]
qkv = rng.standard_normal((tokens, heads + 2 * kv_heads, head_dim)).astype(np.float32)
places, slots = np.int32([5, 6]), np.int32([1, 2])  # positions; slots of the cache
query, key, value = (
    np.ascontiguousarray(part)
    for part in np.split(qkv, [heads, heads + kv_heads], axis=1)
)


gate, up = (np.ascontiguousarray(half) for half in np.split(gate_up, 2, axis=1))
key_cache, value_cache = np.zeros(
    (2, 1, 16, kv_heads, head_dim), np.float32
)  # [blocks, slots, kv_heads, head_dim]

# Results: [0] of the steps apart, [1] of the fused kernels.
summed = [residual.copy(), residual.copy()]
normalized, gated, turned = (
    np.empty((2, *shape), np.float32) for shape in (x.shape, x.shape, query.shape)
)
activated, turned_key = np.empty_like(gate), np.empty_like(key)

steps = {
    "add, RMSNorm": (
        lambda: launch(add_kernel, over(x), BLOCK, (x.ravel(), summed[0].ravel())),
        lambda: rms_norm(summed[0], weight, normalized[0], 1e-5),
    ),
    "silu, multiply": (
        lambda: launch(
            silu_kernel, over(gate), BLOCK, (gate.ravel(), activated.ravel())
        ),
        lambda: launch(
            multiply_kernel,
            over(gate),
            BLOCK,
            (activated.ravel(), up.ravel(), gated[0].ravel()),
        ),
    ),
    "RoPE, append": (
        lambda: rope.rope(query, places, cos_sin, turned[0]),
        lambda: rope.rope(key, places, cos_sin, turned_key),
        lambda: append(turned_key, value, key_cache, value_cache, slots),
    ),
}
fused = {
    "add, RMSNorm": lambda: rms_norm(x, weight, normalized[1], 1e-5, summed[1]),
    "silu, multiply": lambda: silu.silu_and_multiply(gate_up, gated[1]),
    "RoPE, append": lambda: qkv_rope_append(
        qkv.reshape(tokens, -1),
        places,
        slots,
        key_cache,
        value_cache,
        turned[1],
        cos_sin,
    ),
}


# %%
def counted(*launches):
    """(bytes that the launches ask memory for, number of launches), without tables and
    weights, which stay in caches."""
    with tracing() as traces:
        for one in launches:
            one()
    small = ("weight", "cos_sin", "positions", "slot_mapping")
    arrays = [
        array
        for trace in traces
        for name, array in trace.arrays.items()
        if name not in small
    ]
    return sum(array.total.bytes for array in arrays), len(traces)


saved = {}
for name in steps:
    apart, apart_launches = counted(*steps[name])
    together, launches = counted(fused[name])
    saved[name] = apart, together
    print(
        f"{name:15} apart {apart:>6,} bytes in {apart_launches} launches, together "
        f"{together:>6,} in {launches}"
    )
for results in (summed, normalized, gated, turned):
    assert np.allclose(*results, atol=1e-5)

# %% tags=["hide"]
number = x.nbytes  # bytes of one [tokens, hidden] array
assert saved["add, RMSNorm"] == (5 * number, 4 * number)
assert saved["silu, multiply"] == (5 * number, 3 * number)

# %% tags=["fold"]
from minllm.course import Bar, bars

bars(
    [
        Bar(f"{name}, {how}", moved[index] / number, colour=index)
        for name, moved in saved.items()
        for index, how in enumerate(("apart", "together"))
    ],
    unit="arrays",
    title="What moves, in arrays of [tokens, hidden]",
    caption=f"Counted in the simulator: {tokens} tokens of {hidden} numbers. Tables "
    "and weights left out.",
)

# %% [markdown]
# The bytes of the prediction are in the same ratio:

# %%
one = 16384 * 4096 * 2  # bytes of one [tokens, hidden] array
flops = 5 * 16384 * 4096  # an addition, a square and its sum, two multiplications

# %% tags=["hide-input"]
guess.against(
    apart_bytes=5 * one, together_bytes=4 * one, flops_per_byte=flops / (4 * one)
)

# %% [markdown]
# !!! tip "Takeaway"
#     A number that stays in a register is not written and not read again.
#
# ## Launches
#
# A decode step has one token. Moving its kilobytes takes nanoseconds. But a kernel, even one that does almost nothing,
# takes microseconds to start, run and end. The smallest in the record prepares the next step:

# %%
from minllm.course import load_record, recorded

record = load_record()
tb_s, tflops = record["ceilings"]["copy_tb_s"], record["ceilings"]["bf16_tflops"]
(smallest,) = recorded("sampling", "64 rows", "advance")
(decode,) = recorded("decode", "llama-3.1-8b")
print(smallest)
print(decode)

norm_us = 4 * 4096 * 2 / tb_s / 1e6  # one token: four vectors of 4,096 numbers
step_ms = 1e3 / decode.value
saved_launches = 32 * (
    (2 - 1) * 2 + (2 - 1) + (3 - 1)
)  # layers; two norms, a gate and RoPE with append in each
saved_ms = saved_launches * smallest.value / 1e3
print(
    f"\nthe bytes of one token's norm: {norm_us:.3f} µs; the smallest kernel: "
    f"{smallest.value:.1f} µs"
)
print(
    f"{saved_launches} launches saved, {smallest.value:.1f} µs each: {saved_ms:.2f} "
    f"ms of a step of {step_ms:.2f} ms"
)

# %% tags=["hide"]
assert norm_us < smallest.value / 50

# %% tags=["hide-input"]
guess.against(longer="a kernel that does nothing")

# %% [markdown]
# So fusion helps twice. For many tokens it saves bytes, for one token it saves launches. The last line is an estimate:
# it assumes that every launch costs as much as the smallest kernel. Lesson 15 makes the launches themselves cheaper.
#
# !!! tip "Takeaway"
#     With many tokens fusion saves bytes, with one token it saves launches.
#
# ## Measured against predicted
#
# A memory-bound kernel can at best move its bytes as fast as a copy does. On large arrays, on an H200:

# %% tags=["fold"]
chosen = [
    ("normalization", "rms_norm", "addition and RMSNorm"),
    ("normalization", "layer_norm", "addition and LayerNorm"),
    ("activation", "silu_and_multiply", "SwiGLU's gate"),
    ("activation", "gelu", "GELU"),
    ("kv", "append", "append to the cache"),
    ("kv", "qkv_rope_append", "RoPE and append, fused"),
    ("rope", "rope", "RoPE alone"),
]
rows = [
    (name, recorded(benchmark, "", variant)[0]) for benchmark, variant, name in chosen
]
bars(
    [Bar(name, row.value, f"{100 * row.of_limit:.0f} %") for name, row in rows],
    unit="TB/s",
    title="Bandwidth of the small kernels",
    limit=tb_s,
    limit_name="a copy:",
    caption=f"bfloat16, on arrays of about 128 MB; {rows[0][1].label}.",
)

# %% tags=["fold"]
from minllm.course import Dot, roofline

intensity = {
    "rms_norm": 5 / 8,
    "silu_and_multiply": 1.0,
    "rope": 0.75,
    "qkv_rope_append": 0.625,
}  # FLOP per byte
dots = [
    Dot.of_bandwidth(
        f"{name}: {row.value:.2f} TB/s",
        intensity[row.variant],
        row.value,
        colour=number,
    )
    for number, (name, row) in enumerate(
        (name, row) for name, row in rows if row.variant in intensity
    )
]
roofline(
    dots,
    tb_s,
    tflops,
    "All of them are on the slope",
    caption=f"FLOP per byte from the formulas, bfloat16. TB/s {rows[0][1].label}.",
)

# %% tags=["hide"]
speeds = {row.variant: row for _, row in rows}
assert speeds["rms_norm"].of_limit > 0.8 and speeds["silu_and_multiply"].of_limit > 0.8

# %% [markdown]
# The norm and the gate are about as fast as a copy. The only gain left is to have fewer of them. If a bar is far below
# a copy, too few bytes are in flight: the RoPE kernel above loads 2 bytes at a time. [The same
# file](../minllm/kernels/rope/ladder/rope.py) has a second kernel for heads of the usual sizes, which loads 16. The engine
# launches neither: its fused kernel rotates numbers that it has to move anyway. If a GEMM computes those numbers, such
# a last step is called its epilogue: bias and SwiGLU's gate can be part of it.
#
# On a machine with a GPU, this cell measures yours. The separate addition is the plain kernel, one number per thread,
# so it loses time for other reasons than bytes, too:

# %% tags=["fold"]
from minllm.course import has_gpu

if has_gpu():
    from minllm.course import kernel_seconds, machine_line
    from minllm.ops.cuda_ops import CudaOps

    place = CudaOps()
    large = rng.standard_normal((8192, 4096), np.float32)  # [tokens, hidden], 134 MB
    arrays = [
        place.array(large),
        place.array(large),
        place.empty(large.shape, np.float32),
    ]
    flat, scale = (
        [array.reshape(-1) for array in arrays[:2]],
        place.array(np.ones(4096, np.float32)),
    )
    added = kernel_seconds(
        lambda stream: launch(add_kernel, over(large), BLOCK, tuple(flat), stream)
    )
    normed = kernel_seconds(
        lambda stream: rms_norm(arrays[1], scale, arrays[2], 1e-5, stream=stream)
    )
    both = kernel_seconds(
        lambda stream: rms_norm(arrays[0], scale, arrays[2], 1e-5, arrays[1], stream)
    )
    print(
        f"apart {1e6 * (added + normed):.0f} µs, together {1e6 * both:.0f} µs, "
        f"{machine_line()}"
    )
else:
    print("No GPU here: nothing was timed on this machine.")

# %% [markdown]
# ## Exercises

# %% tags=["hide-input"]
show_exercises("normalization.rms_norm", "rope.rotate")

# %% [markdown]
# ## A detective case

# %% tags=["hide-input"]
from minllm.course import show_case

show_case("hanging_norm")

# %% [markdown]
# ## Problems
#
# ??? question "1. RMSNorm of (1, 1, 1, 1) and of (2, 2, 2, 2), weight 1?"
#     Both are (1, 1, 1, 1): the norm removes the size and keeps the direction.
#
# ??? question "2. Query and key have their only nonzero pair at index 0, both (1, 0). What is their score at distance 0, and at distance 3?"
#     cos(0) = 1 and cos(3) = -0.99. At distance 3 this pair makes the score negative. Slower pairs change little over
#     that distance.
#
# ??? question "3. Three element-wise kernels on [2,048, 4,096] in bfloat16, each reading one array and writing one. What does fusing them save on an H200 at 4.2 TB/s?"
#     An array is 16.8 MB. Apart there are 6 trips, 100.7 MB, 24 µs; fused 2 trips, 33.6 MB, 8 µs. That saves 16 µs per
#     layer, and half a millisecond over 32 layers.
#
# ??? question "4. At batch 1 the same three kernels have 8 KB arrays. What does fusing save now?"
#     6 trips of 8 KB take 12 ns, which is negligible. Two launches fewer save about 2 to 5 µs.
#
# ??? question "5. A feed-forward writes gate and up, [T, 2 I], and a second kernel writes silu(gate) * up, [T, I]. If the GEMM's epilogue applies the gate, how many bytes per token are saved for I = 14,336 in bfloat16?"
#     The write and the read of gate and up: 2 · 28,672 · 2 bytes = 115 KB per token and layer. For 2,048 tokens and
#     32 layers that is 7.5 GB, 1.8 ms of a prefill that takes 45 ms.
#
# ## What next
#
# The small kernels are as fast as a copy. Lessons [5a](05a_matrix_products_in_tiles.py) and
# [5b](05b_matrix_products_on_hopper.py) made the GEMMs fast. One
# stage of a layer is still as it was in lesson 3:

# %%
for variant in ("materialized", "flash_attention_2"):
    print(
        recorded("prefill attention", "1x512, 32/8 heads, d 128, bfloat16", variant)[0]
    )

# %% [markdown]
# One attention kernel writes the scores to memory, and the next one reads them. The remedy is fusion. But a softmax
# needs the whole row before it can write its first number. [Lesson 7](07_prefill_and_flash_attention.py) fuses it
# nevertheless.
#
# ## Sources
#
# - B. Zhang, R. Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019, equation 4.
# - J. L. Ba, J. R. Kiros, G. E. Hinton, "Layer Normalization", 2016, section 3.
# - J. Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, section 3.2.2.
# - N. Shazeer, "GLU Variants Improve Transformer", 2020, equation 6.
# - S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52 (2009).
