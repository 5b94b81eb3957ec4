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
# # 7. Prefill: online softmax and FlashAttention
#
# [Lesson 3](03_scaled_dot_product_attention.py) ended with a square: a prompt of $T$ tokens has $T^2$ scores, and
# writing them to memory takes longer than computing them. FlashAttention never writes them. It rests on one
# mathematical idea: a softmax can be computed without having all its numbers at once.
#
# ```mermaid
# flowchart LR
#     t1["tile of keys 1"] --> s1["state<br/>m, l, o"]
#     s1 -- "rescale by e^(m - m')" --> s2["state<br/>m', l', o'"]
#     t2["tile of keys 2"] --> s2
#     s2 -- "rescale" --> s3["..."] --> out["out = o / l"]
# ```
#
# $$m = \max_j s_j \qquad l = \sum_j e^{s_j - m} \qquad o = \sum_j e^{s_j - m}\, v_j \qquad \mathrm{out} = o / l$$
#
# The state of a row is only $m$, $l$ and $o$. As a kernel with one thread per query, this is lesson 3's attention
# without the second pass:

# %%
import math

from numba import cuda, float32

from minllm.runtime.kernel import kernel


@kernel
def online_attention_kernel(Q, K, V, out, scale):  # Q, K, V, out: [T, d]
    t = cuda.threadIdx.x  # one thread per query
    m, total = float32(-math.inf), float32(0)  # the largest score so far, the sum l
    for key in range(t + 1):  # causal
        score = float32(0)
        for i in range(Q.shape[1]):
            score += Q[t, i] * K[key, i]
        score *= scale
        new_m = max(m, score)
        correction = math.exp(m - new_m)  # (1)!
        weight = math.exp(score - new_m)
        total = total * correction + weight
        for i in range(V.shape[1]):
            out[t, i] = out[t, i] * correction + weight * V[key, i]  # (2)!
        m = new_m
    for i in range(V.shape[1]):
        out[t, i] /= total


# %% [markdown]
# 1. If the maximum rises, all weights so far are too large, by the same factor. The correction is 0 for the first key,
#    and 1 while the maximum stays.
# 2. The sum and the output are both rescaled. In this lesson's detective case one of them is not.
#
# **What you will be able to do**
#
# - compute a softmax tile by tile, with a running maximum, and say what has to be rescaled, when, and why;
# - tell FlashAttention-1 from 2 by the order of their loops, and count the bytes that each order moves;
# - explain what a Hopper GPU adds, and why exponentials became the bottleneck.
#
# You need lesson 3 for attention, and [lesson 5a](05a_matrix_products_in_tiles.py) for tiles and tensor cores.
#
# ## Predict
#
# A model of 8 billion parameters (32 query heads, 8 KV heads, 128 numbers per head) reads a prompt of 8,192 tokens. All
# questions are about the attention of **one layer**.

# %% tags=["hide-input"]
from minllm.course import Prediction

guess = Prediction(
    tiles="Scores are kept in tiles of 128 x 128, 4,096 of them per head. How many have to be computed?",
    limit=(
        "If no score is written to memory, what is the limit?",
        "memory",
        "arithmetic",
    ),
    fa1_over_scores="FlashAttention-1 with tiles of 32 keys keeps the rows' states in memory instead of the scores. "
    "By what factor does it move more bytes than the three kernels?",
    exponentials_over_product="On an H200's SM, how long do the exponentials of a tile take, "
    "as a multiple of its product Q Kᵀ?",
)
guess.ask()

# %% [markdown]
# ## A softmax in pieces
#
# If the maximum rises from $m$ to $m'$, then every exponential so far is too large by the factor $e^{m' - m}$:
#
# $$m' = \max(m, \max_j s_j) \qquad l' = l\, e^{m - m'} + \sum_j e^{s_j - m'} \qquad o' = o\, e^{m - m'} + \sum_j e^{s_j - m'}\, v_j$$
#
# **By hand.** Powers of 2 are easier than powers of $e$, and the kernels use them too. Take four keys with scores 1,
# 3, 2, 5 and values 4, 2, 8, 1, in tiles of two. Fill in the last line before you look at the next cell.
#
# | | scores | maximum $m$ | factor for the old sums | new weights | sum $l$ | output $o$ |
# | --- | --- | ---: | ---: | --- | ---: | ---: |
# | at the beginning | | $-\infty$ | | | 0 | 0 |
# | first tile | 1, 3 | 3 | $2^{-\infty} = 0$ | $2^{-2}, 2^0$ | 1.25 | $0.25 \cdot 4 + 1 \cdot 2 = 3$ |
# | second tile | 2, 5 | ? | ? | ? | ? | ? |

# %%
import numpy as np

scores, values = np.float64([1, 3, 2, 5]), np.float64([4, 2, 8, 1])
m, total, o = -np.inf, 0.0, 0.0  # total is the l of the formulas
for first in (0, 2):
    tile, tile_values = scores[first : first + 2], values[first : first + 2]
    new_m = max(m, tile.max())
    factor, weights = 2 ** (m - new_m), 2 ** (tile - new_m)
    m, total, o = (
        new_m,
        total * factor + weights.sum(),
        o * factor + weights @ tile_values,
    )
    print(
        f"scores {tile}: m = {m:g}, factor {factor:g}, weights {weights}, l = "
        f"{total:g}, o = {o:g}"
    )

all_at_once = 2 ** (scores - scores.max())
print(
    f"out = o / l = {o / total:.4f}; all at once: "
    f"{all_at_once @ values / all_at_once.sum():.4f}"
)

# %% tags=["hide"]
assert (m, total, o) == (5, 1.4375, 2.75) and np.isclose(
    o / total, all_at_once @ values / all_at_once.sum()
)

# %% [markdown]
# Nothing is approximate here: the result is the softmax, whatever the tiles and the order of the keys.
#
# !!! tip "Takeaway"
#     When the maximum rises, the old sum and the old output are scaled by the same factor.
#
# ## Write your own
#
# The state of any set of keys is such a triple, and two states merge by the same rule, in any order. Write the merge:

# %% tags=["hide-input"]
from minllm.course import show_exercises

show_exercises("attention.merge_states")

# %% [markdown]
# This cell runs the kernel from the top in the simulator:

# %%
rng = np.random.default_rng(2)
Q, K, V = rng.standard_normal((3, 16, 8)).astype(np.float32)  # [T, d] each
out = np.zeros((16, 8), np.float32)
online_attention_kernel.simulate[1, 16](Q, K, V, out, float32(8**-0.5))
weights = np.exp(np.where(np.tri(16, dtype=bool), Q @ K.T * 8**-0.5, -np.inf))
print("16 queries, one pass over the keys: the same as a softmax over whole rows")

# %% tags=["hide"]
assert np.allclose(out, weights @ V / weights.sum(axis=1, keepdims=True), atol=1e-5)

# %% [markdown]
# Here the sets of keys are tiles; in [lesson 9](09_flash_decoding.py) each belongs to a block of the GPU.
#
# ## Skip the tiles above the diagonal
#
# Keys are grouped in tiles, and so are queries: a small GEMM of 64 rows of $Q$ and 64 rows of $K$ on tensor cores gives
# a $64 \times 64$ tile of scores. The tile stays in registers. There it becomes weights, is multiplied by 64 rows of
# $V$, and is discarded.
#
# A causal model only looks back. Tiles above the diagonal are never computed, tiles below it need no mask, and only
# tiles on it are masked, score by score:

# %% tags=["fold"]
from minllm.course import heat_map

tiles = np.full((8, 8), np.nan)
tiles[np.tril_indices(8, -1)] = 1.0
tiles[np.diag_indices(8)] = 0.5
heat_map(
    tiles,
    "512 queries, 512 keys, tiles of 64",
    row_names=[f"queries {64 * i}-{64 * i + 63}" for i in range(8)],
    column_names=[str(64 * i) for i in range(8)],
    caption="Dark: computed as it is. Light: computed and masked. Empty: skipped, and "
    "its keys are not even loaded.",
)

# %%
from minllm.costs import prefill_stages
from minllm.models.shapes import named_config

T, tile = 8192, 128
visible = T * (T + 1) // 2
tiles_a_side = T // tile
needed_tiles = tiles_a_side * (tiles_a_side + 1) // 2
print(
    f"visible scores: {visible / T**2:.1%} of the square; tiles computed: "
    f"{needed_tiles:,} of {tiles_a_side**2:,}"
)
print(f"computed and thrown away: {needed_tiles * tile**2 / visible - 1:.1%}")

(stage,) = [
    stage
    for stage in prefill_stages(named_config("llama-3.1-8b"), T)
    if stage.name == "attention"
]
print(
    f"{stage.flops / stage.bytes:,.0f} FLOP per byte, if Q, K, V and the output move "
    "once"
)

# %% [markdown]
# [The interactive page](../docs/flash-attention-tiles.md) steps through the tiles of one query's keys and shows
# its state $(m, l, o)$.
#
# <!-- interactive: flash-attention-tiles -->
#
# !!! tip "Takeaway"
#     Only tiles on the diagonal need a mask; tiles above it are never computed.
#
# ## FlashAttention-1: keys outside
#
# Which loop is outside, the one over tiles of keys or the one over tiles of queries? In FlashAttention-1 (2022) it is
# the loop over keys. It loads a tile of K and V into shared memory once, then loops over all rows of queries: each
# row's state $(m, l, o)$ is loaded from memory, updated with the tile, and written back.

# %% tags=["fold"]


def order(keys_outside):
    """In which step each of 6 x 6 tiles is computed by one block."""
    steps, step = np.full((6, 6), np.nan), 0
    for outer in range(6):
        step = (
            step if keys_outside else 0
        )  # with queries outside, each row of tiles is a block of its own
        for inner in range(6):
            query, key = (inner, outer) if keys_outside else (outer, inner)
            if key <= query:
                step += 1
                steps[query, key] = step
    return steps


names = [f"queries {i}" for i in range(6)], [f"keys {i}" for i in range(6)]
heat_map(
    order(True),
    "FlashAttention-1: one block per head goes down the columns, 21 steps",
    *names,
    show_values=True,
    caption="The number is the step. Every row is visited again and again, and its "
    "state travels each time.",
)

# %% tags=["fold"]
heat_map(
    order(False),
    "FlashAttention-2: one block per row of tiles, 6 steps at most",
    *names,
    show_values=True,
    caption="The number is the step of the row's own block. The state never leaves "
    "the block.",
    series=1,
)

# %% [markdown]
# !!! tip "Takeaway"
#     With the keys outside, each tile of keys loads and stores the states of all rows.
#
# ## FlashAttention-2: queries outside
#
# FlashAttention-2 (2023) swapped the loops. A block has one tile of queries and loops over the tiles of keys. The rows'
# states stay in registers from beginning to end, and there is one block per tile of queries instead of one per head.
# Two more changes keep the tensor cores busy:
#
# - it divides by $l$ once, at the end, while FlashAttention-1 keeps $o$ divided all the time;
# - each warp has rows of its own, so warps exchange nothing.

# %% tags=["hide-input"]
from minllm.course import show_source
from minllm.kernels.attention.flash_attention_2.kernel import make_kernel, make_softmax

show_source(
    make_kernel,
    part="flash_attention_2_kernel",
    folded="The loop of FlashAttention-2",
    notes={
        "first_row = (cuda.gridDim.x": "A block's tile of queries. The longest rows, at the end, go first, so that no "
        "block begins a long one when all others are done.",
        "visible_stop = ": "Causal skipping: the loop ends behind the tile's last row.",
        "acc = cuda.local.array": "The state, in registers: o here, m and l below.",
        "while first_key < visible_stop": "The loop over keys, inside.",
        "matmuls.scores(scores": "S = Q Kᵀ for this tile, while V is in flight.",
        "if at_the_end or at_the_start": "Only tiles on the diagonal (or at a window's edge) are masked.",
        "softmax.fold(scores": "Online softmax: below.",
        "matmuls.output(acc": "o += P V, while the next K is in flight.",
        "softmax.store(state": "One division per row, at the end.",
    },
)

# %% tags=["hide-input"]
show_source(
    make_softmax,
    part="fold",
    folded="Folding a tile of scores into the state",
    notes={
        "shift = finite_or_zero": "A row that has seen no key has the maximum -inf, and -inf - -inf is not a number.",
        "correction = ex2": "The factor for everything that was there.",
        "state.sums[row] = ": "l, rescaled, plus this tile's weights ...",
        "out_rows.scale(state.acc": "... and o rescaled too. Both, or the result is wrong.",
    },
)

# %% [markdown]
# !!! tip "Takeaway"
#     With the queries outside, the states stay in registers, and there are more blocks.
#
# ## Run it
#
# Three kernels on the same 64 tokens, one head of 16 numbers, in the simulator:

# %%
import ml_dtypes

from minllm.kernels.attention import VARIANTS
from minllm.kernels.attention.reference import attention_reference
from minllm.sim import tracing

tokens, head_dim = 64, 16
query = rng.standard_normal((tokens, 1, head_dim)).astype(
    ml_dtypes.bfloat16
)  # [tokens, heads, head_dim]
keys, values = rng.standard_normal((2, 1, tokens, 1, head_dim)).astype(
    ml_dtypes.bfloat16
)  # a block of the cache
batch = np.int32([0, tokens]), np.int32([tokens]), np.int32([[0]])
expected = attention_reference(
    query.astype(np.float32), keys, values, *batch, head_dim**-0.5
)
counted = {}
for name, options in (
    ("materialized", {}),
    ("flash_attention_1", dict(warps=1)),  # tiles of 32 keys
    ("flash_attention_2", dict(tiles=(16, 16, 1))),  # 16 queries, 16 keys, 1 warp
):
    out = np.empty_like(query)
    with tracing() as traces:
        VARIANTS[name].attention(
            query, keys, values, out, *batch, head_dim**-0.5, **options
        )
    assert np.allclose(out.astype(np.float32), expected, atol=0.03)
    moved = {}
    for trace in traces:
        for array, traffic in trace.arrays.items():
            moved[array] = moved.get(array, 0) + traffic.total.bytes
    counted[name] = moved
    between = {
        array: amount
        for array, amount in moved.items()
        if array in ("scores", "row_out")
    }
    cached = moved["key_cache"] + moved["value_cache"]
    print(f"{name:18} K and V {cached:>6,} bytes, between steps {between or 'nothing'}")

# %% tags=["hide"]
steps = sum(
    -(-(row + 1) // 32) for row in range(tokens)
)  # pairs of a row and a tile of 32 keys that it sees
assert (
    counted["flash_attention_1"]["row_out"] == (2 * steps + tokens) * head_dim * 4
)  # read and written per step; zeroed first
assert (
    counted["flash_attention_2"]["key_cache"]
    == sum(16 * (i + 1) for i in range(4)) * head_dim * 2
)

# %% [markdown]
# The square is gone from memory. Instead FlashAttention-1 moves the states, once per row *and tile of keys*, and
# FlashAttention-2 the keys and values, once per *tile of queries*. The number of bytes depends on the tile. For the
# prompt of the prediction, in one layer of the 8B model:

# %%
from minllm.course import Bar, bars

heads, d, item = 32, 128, 2
asked = {
    "three kernels": 28 * heads * visible,  # lesson 3 counted 28 bytes per score
    "FlashAttention-1, 32 keys": ((item + 8) * d + 16)
    * heads
    * sum(-(-(row + 1) // 32) for row in range(T)),
    "FlashAttention-2, 128 queries": heads
    * 2
    * d
    * item
    * sum(128 * (i + 1) for i in range(T // 128)),
    "Q, K, V and output once": stage.bytes
    / named_config("llama-3.1-8b").num_hidden_layers,
}
for name, amount in asked.items():
    print(f"{name:32} {amount / 1e9:8.2f} GB")

# %% tags=["hide"]
assert (
    asked["FlashAttention-1, 32 keys"]
    > asked["three kernels"]
    > 5 * asked["FlashAttention-2, 128 queries"]
)

# %% tags=["fold"]
bars(
    [Bar(name, amount / 1e9) for name, amount in asked.items()],
    unit="GB",
    title="Bytes that one layer's attention requests, 8,192 tokens",
    log=True,
    caption="From the formulas in the kernels' docstrings, before caches: a "
    "logarithmic axis.",
)

# %% [markdown]
# Look at the second bar. With tiles of 32 keys, FlashAttention-1's states cause *more* traffic than the scores did. It
# is not enough to write no scores. The paper's kernel has larger tiles, and its author's next paper swapped the loops.
#
# !!! tip "Takeaway"
#     Not writing the scores is not enough: the states must stay on the chip too.
#
# ## What Hopper adds
#
# What keeps FlashAttention-2 below the roof? Count cycles. Per cycle, an SM of an H100 or H200 does 4,096 operations in
# its tensor cores (bfloat16), and 16 exponentials in its special function units. For a tile of 64 queries and 128 keys,
# head_dim 128:

# %%
pairs = 64 * 128
cycles = {
    "S = Q Kᵀ": 2 * 128 * pairs / 4096,
    "exponentials": pairs / 16,
    "o += P V": 2 * 128 * pairs / 4096,
}
for name, count in cycles.items():
    print(f"{name:14} {count:.0f} cycles")

# %% tags=["hide"]
assert cycles["exponentials"] == cycles["S = Q Kᵀ"]

# %% tags=["hide-input"]
guess.against(
    tiles=needed_tiles,
    limit="arithmetic",
    fa1_over_scores=asked["FlashAttention-1, 32 keys"] / asked["three kernels"],
    exponentials_over_product=cycles["exponentials"] / cycles["S = Q Kᵀ"],
)

# %% [markdown]
# The exponentials take as long as either GEMM, though they are a 512th of the operations. Tensor cores became faster
# from one generation to the next, and special function units did not. If a warp multiplies, computes exponentials, and
# multiplies again, the tensor cores are idle for a third of the time.
#
# FlashAttention-3 (2024) uses TMA, wgmma and warp specialisation as rungs 5 to 7 of lesson 5b do, and adds
# **ping-pong**: two consumers alternate. While one multiplies, the other computes exponentials.
#
# ```mermaid
# flowchart TD
#     P["producer<br/>one thread"] -- "TMA: tiles of K and V" --> R["ring of tiles<br/>shared memory"]
#     R -- "mbarrier:<br/>full" --> A["consumer 1<br/>64 rows,<br/>wgmma, softmax"]
#     R -- "mbarrier:<br/>full" --> B["consumer 2<br/>64 rows,<br/>wgmma, softmax"]
#     A -- "mbarrier:<br/>empty" --> P
#     B -- "mbarrier:<br/>empty" --> P
#     A <-. "hand-off" .-> B
# ```
#
# The charts show these cycles on a time axis:

# %% tags=["fold"]
from minllm.course import Span, timeline


def schedule(consumers, tiles=3):
    """Spans of consumers that share one set of tensor cores and one of special function
    units."""
    spans, tensor_free, special_free = [], 0.0, 0.0
    ready = [0.0] * consumers
    for step in range(tiles):
        for consumer in range(consumers):
            begin = max(
                tensor_free, ready[consumer]
            )  # P V of the previous tile, and Q K of this one
            products = 512.0 if step == 0 else 1024.0
            spans.append(
                Span(
                    "tensor cores",
                    begin,
                    begin + products,
                    f"{consumer + 1}",
                    colour=consumer,
                )
            )
            tensor_free = begin + products
            softmax = max(special_free, tensor_free)
            spans.append(
                Span(
                    "exponentials",
                    softmax,
                    softmax + 512.0,
                    f"{consumer + 1}",
                    colour=consumer,
                )
            )
            special_free = ready[consumer] = softmax + 512.0
    return spans


def share_busy(spans):
    """Of the time from the first product's end to the last one's, how much tensor cores
    work."""
    products = [span for span in spans if span.lane == "tensor cores"]
    return sum(span.end - span.start for span in products[1:]) / (
        products[-1].end - products[0].end
    )


timeline(
    schedule(1),
    "cycles",
    "One consumer: tensor cores wait for the exponentials",
    caption="A schedule computed from the two rates; copies, sums and maxima are left "
    "out. It is not a measurement.",
)

# %% tags=["fold"]
timeline(
    schedule(2),
    "cycles",
    "Two consumers alternate: the exponentials of one overlap with the GEMMs of the "
    "other",
    caption="The same, with two groups of warps. Colours are the groups.",
)

# %%
one, two = share_busy(schedule(1, 20)), share_busy(schedule(2, 20))
print(f"tensor cores busy: {one:.0%} with one consumer, {two:.0%} with two")

# %% tags=["hide"]
assert 0.6 < one < 0.7 and two > 0.95

# %% [markdown]
# With two consumers, attention can be 1.5 times as fast. The maxima, the sums, the rescaling of $o$ and the masked
# tiles take time, too, and are not in the charts.

# %% tags=["hide-input"]
from minllm.kernels.attention.flash_attention_3 import consumer as hopper_consumer

show_source(
    hopper_consumer.make_consume,
    part="consume",
    folded="A consumer of FlashAttention-3",
    notes={
        "while True": "The loop over tiles of keys: a tile of queries takes its keys from last to first.",
        "begins = left == 0": "The first scores of another tile of queries come beside the last output of the one before.",
        "wait_for_turn(consumer)": "Ping-pong: only one consumer at a time starts wgmma.",
        "start_output(acc, weights": "o += P V of the tile before, behind S = Q Kᵀ of this one. Both are in flight now.",
        "pass_turn(consumer)": "The other consumer may start its own.",
        "wgmma_wait_group_1": "All wgmmas but the newest are done: the scores are here, and P V is still being computed ...",
        "weigh_tile(scores, rows, from_origins": "... while the softmax goes on.",
        "rescale(acc, rows)": "o is rescaled when P V is done. The kernel leaves that out where no maximum has risen by much.",
    },
    docstring=False,
)

# %% [markdown]
# In the simulator, on 512 tokens and one head of 64 numbers, the producer runs ahead of the wgmma:

# %%
tokens, head_dim = 512, 64
query = rng.standard_normal((tokens, 1, head_dim)).astype(ml_dtypes.bfloat16)
keys, values = rng.standard_normal((2, 1, tokens, 1, head_dim)).astype(
    ml_dtypes.bfloat16
)
batch = np.int32([0, tokens]), np.int32([tokens]), np.int32([[0]])
out = np.empty_like(query)
with tracing() as traces:
    VARIANTS["flash_attention_3"].attention(
        query, keys, values, out, *batch, head_dim**-0.5
    )
expected = attention_reference(
    query.astype(np.float32), keys, values, *batch, head_dim**-0.5
)
copies = [copy for copy in traces[0].pipeline if copy.arrived is not None]
print(f"{traces[0].kernel}: {len(copies)} loads by TMA in the traced block")

# %% tags=["hide"]
assert np.allclose(out.astype(np.float32), expected, atol=0.03)

# %% tags=["fold"]
timeline(
    [
        Span(f"copy {copy.number}", copy.issued, copy.arrived, "in flight")
        for copy in copies[:12]
    ]
    + [
        Span("tensor cores", step, step + 1, "", colour=1)
        for step, flops in enumerate(traces[0].step_flops)
        if flops and step <= max(copy.arrived for copy in copies[:12])
    ],
    "",
    "Copies of tiles, started by the producer, and GEMMs of the consumers",
    caption="Steps of one block, from the simulator, which gives the order, but no "
    "times.",
)

# %% [markdown]
# !!! tip "Takeaway"
#     Exponentials are slow: hide them behind the GEMMs of another warpgroup.
#
# ## Measured against predicted

# %% tags=["fold"]
from minllm.course import load_record, recorded

ceilings = load_record()["ceilings"]
peak = ceilings["bf16_tflops"]
ladder = ["materialized", "flash_attention_1", "flash_attention_2", "flash_attention_3"]


def named(row):
    """The variant, and how its keys lie where that is not in blocks of 16."""
    return row.variant + (", one block" if row.case.endswith("contiguous") else "")


short = recorded("prefill attention", "1x512, 32/8 heads, d 128, bfloat16")
short.sort(key=lambda row: ladder.index(row.variant))
peer = max(short, key=lambda row: row.peer_value or 0)
bars(
    [Bar(named(row), row.value, f"{100 * row.value / peak:.2g} %") for row in short]
    + [
        Bar(
            peer.peer,
            peer.peer_value,
            f"{100 * peer.peer_value / peak:.2g} %",
            colour=1,
        )
    ],
    unit="TFLOP/s",
    title="A prompt of 512 tokens",
    limit=peak,
    limit_name="best GEMM measured:",
    log=True,
    caption=f"32 query heads, 8 KV heads of 128; a logarithmic axis; {short[0].label}.",
)

# %% tags=["fold"]
long = recorded("prefill attention", "4x2048, 32/8 heads, d 128, bfloat16")
long.sort(key=lambda row: ladder.index(row.variant))
peer = max(long, key=lambda row: row.peer_value or 0)
bars(
    [Bar(named(row), row.value, f"{100 * row.value / peak:.2g} %") for row in long]
    + [
        Bar(
            peer.peer,
            peer.peer_value,
            f"{100 * peer.peer_value / peak:.2g} %",
            colour=1,
        )
    ],
    unit="TFLOP/s",
    title="Four prompts of 2,048 tokens",
    limit=peak,
    limit_name="best GEMM measured:",
    caption=f"32 query heads, 8 KV heads of 128; {long[0].label}.",
)

# %% tags=["hide"]
speeds = {row.variant: row.value for row in short}
assert (
    speeds["flash_attention_1"]
    < speeds["materialized"]
    < speeds["flash_attention_2"] / 10
)
assert {row.variant: row.value for row in long}["flash_attention_2"] > 2 * speeds[
    "flash_attention_2"
]

# %% [markdown]
# - **FlashAttention-1** is slower than the three kernels that it was to replace, as the bytes predicted. It has only
#   one block per head, 32 on a machine of 132 SMs, and it multiplies on ordinary units.
# - **FlashAttention-2** is the first fast version: it has states in registers, enough blocks, and tensor cores.
# - A short prompt has too few tiles to fill the machine. The longer prompts run more than twice as fast.
# - **FlashAttention-3** comes closest to the roof, because the exponentials are hidden.
#
# On a roofline, attention of a prompt is far to the right: memory is not the limit.

# %% tags=["fold"]
from minllm.course import Dot, roofline

intensity = {"1x512": 512, "4x2048": 2048}
dots = []
for case, rows in (("1x512", short), ("4x2048", long)):
    count = intensity[case]
    moved_bytes = count * (2 * heads + 2 * 8) * d * item  # Q and out, K and V, once
    flops_per_byte = 4 * heads * d * count * (count + 1) / 2 / moved_bytes
    dots += [
        Dot(f"{row.variant}, {case}", flops_per_byte, row.value)
        for row in rows
        if named(row) == row.variant
    ]
roofline(
    dots,
    ceilings["copy_tb_s"],
    peak,
    "Attention of a prompt",
    caption=f"Operations per byte that has to move at least once; {short[0].label}.",
)

# %% [markdown]
# On a machine with a GPU, this cell measures yours:

# %% tags=["fold"]
from minllm.course import has_gpu

if has_gpu():
    import functools

    from minllm.course import kernel_seconds, machine_line
    from minllm.errors import MinLLMError
    from minllm.ops.cuda_ops import CudaOps

    place, count = CudaOps(), 2048
    cache = [
        place.array(
            rng.standard_normal((count // 16, 16, 8, d)).astype(ml_dtypes.bfloat16)
        )
        for _ in range(2)
    ]
    big_query = rng.standard_normal((count, heads, d)).astype(ml_dtypes.bfloat16)
    tables = np.arange(count // 16, dtype=np.int32)[None]
    arrays = [
        place.array(big_query),
        *cache,
        place.empty(big_query.shape, big_query.dtype),
    ]
    arrays += [
        place.array(array)
        for array in (np.int32([0, count]), np.int32([count]), tables)
    ]
    print(machine_line())
    for name in (name for name in ladder if name in VARIANTS):
        shapes = VARIANTS[name].workspace_shapes(big_query, cache[0], tables)
        space = {
            key: place.empty(shape, np.dtype(dtype))
            for key, (shape, dtype) in shapes.items()
        }
        try:
            options = dict(max_query_len=count, workspace=space)
            attend = functools.partial(
                VARIANTS[name].attention, *arrays, d**-0.5, **options
            )
            seconds = kernel_seconds(
                lambda stream, attend=attend: attend(stream=stream)
            )
            print(
                f"{name:18} "
                f"{4 * heads * d * count * (count + 1) / 2 / seconds / 1e12:8.2f} "
                "TFLOP/s"
            )
        except MinLLMError as error:
            print(f"{name:18} not on this GPU: {error}")
else:
    print("No GPU here: nothing was timed on this machine.")

# %% [markdown]
# ## Exercises

# %% tags=["hide-input"]
show_exercises("attention.flash_attention_1")

# %% [markdown]
# ## A detective case

# %% tags=["hide-input"]
from minllm.course import show_case

show_case("rising_scores")

# %% [markdown]
# ## Problems
#
# ??? question "1. Scores 2, 0, 4 and values 1, 1, 5, one key per tile, powers of 2. What are m, l and o after each?"
#     (2, 1, 1); (2, 1.25, 1.25); the maximum rises by 2, factor 1/4: (4, 1.3125, 5.3125). Output 4.05.
#
# ??? question "2. Two halves of a row gave (m, l, o) = (3, 2, 6) and (1, 4, 8), powers of 2. Merge them."
#     m = 3. The second state is scaled by 1/4: l = 2 + 1 = 3, o = 6 + 2 = 8, output 2.67.
#
# ??? question "3. How many bytes of K and V does FlashAttention-2 load for one head of 128, 8,192 tokens, with 128 queries per tile? And with 64?"
#     Tile i loads 128 (i + 1) keys: 64 · 65 / 2 · 128 · 512 bytes = 136 MB per query head. With 64 queries per tile
#     it is nearly twice that, 271 MB. Most of it comes from L2.
#
# ??? question "4. A chip doubles tensor core throughput and keeps 16 exponentials per cycle per SM. What happens to the cycle counts of this page?"
#     Each GEMM takes 256 cycles instead of 512, the exponentials still 512: as long as both GEMMs together. Even
#     ping-pong can only just hide them, and the special function unit becomes the bottleneck. This is why newer kernels
#     compute some exponentials with polynomials.
#
# ??? question "5. Prefill attention of 16,384 tokens in the 8B shape takes 4 · 32 · 128 · T²/2 operations per layer. How long does it take at 600 TFLOP/s, and what share is it of a prefill whose GEMMs take 360 ms?"
#     2.2 TFLOP per layer, 3.7 ms; 117 ms for 32 layers: a quarter of the whole. At 2,048 tokens it is 1.8 ms of 45,
#     because attention grows quadratically and the GEMMs linearly.
#
# ## What next
#
# All this was for a prompt. In a decode step there is one query, and the same kernel has one row in its tile:

# %%
from minllm.course import listing

print(listing(recorded("decode attention", "1x8192, 32/8", listed=True)))

# %% [markdown]
# No GEMM is left, every key and value is used by one token only, and the slope of the roofline is the limit again.
# Two lessons deal with that: [the next](08_the_kv_cache.py) explains where keys and values are kept, and how many
# bytes they take; [lesson 9](09_flash_decoding.py) splits them over blocks, and merges the states by the rule of this
# page.
#
# ## Sources
#
# - M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", 2018 (arXiv 1805.02867), section 3.
# - T. Dao, D. Y. Fu, S. Ermon, A. Rudra, C. Ré, "FlashAttention", NeurIPS 2022 (arXiv 2205.14135), algorithm 1.
# - T. Dao, "FlashAttention-2", ICLR 2024 (arXiv 2307.08691), section 3.
# - J. Shah et al., "FlashAttention-3", NeurIPS 2024 (arXiv 2407.08608), section 3.
# - NVIDIA, "CUDA C++ Programming Guide", "Arithmetic Instructions": exponentials per cycle; "H100 architecture":
#   tensor cores.
