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
# # 10. GEMV, flat GEMMs and FlashDecoding++
#
# A decode step multiplies every weight by the vectors of a few tokens. One token is a GEMV, a batch of 8 or 64 is a
# flat GEMM, and thousands of tokens are the large GEMMs of lesson 5b. The choice between these kernels decides the speed
# of a server. FlashDecoding++ (2023) has three ideas for this regime: flat GEMMs, one maximum for all of softmax, and a
# choice by measurement.

# %% tags=["fold"]
from minllm.course import listing, load_record, recorded

ceilings = load_record()["ceilings"]
tb_s, tflops = ceilings["copy_tb_s"], ceilings["bf16_tflops"]

N, K = 6144, 4096
from minllm.course import curves

microseconds, library = {}, {}
for row in recorded("matmul", f"x{N}x{K}, bfloat16"):
    M = int(row.case.split("x")[0])
    work = 2 * M * N * K if row.unit == "TFLOP/s" else 2 * (M * K + N * K + M * N)
    if M <= 256:
        microseconds.setdefault(row.variant, {})[M] = work / row.value / 1e6
        if row.peer_value:
            library[M], library_name = work / row.peer_value / 1e6, row.peer
        label = row.label
microseconds[library_name] = library
curves(
    {
        name: sorted(points.items())
        for name, points in microseconds.items()
        if len(points) > 1
    },
    "tokens",
    "µs",
    f"A weight of {N:,} x {K:,}",
    log_x=True,
    caption=f"bfloat16. Reading the weight once takes {2 * N * K / tb_s / 1e6:.1f} µs "
    f"at a copy's speed; {label}.",
)

# %% [markdown]
# $$\mathrm{out} = W x \qquad \text{intensity} = \frac{2 M N K}{2\,(N K + M K + M N)} \approx M \text{ FLOP per byte (16 bits)}$$
#
# Left of the ridge, near 200 tokens, the time is just the time to read the weight once, so the line should be flat. This is
# the GEMV that a beginner would write, one warp per row:

# %% tags=["hide-input"]
from minllm.course import show_source
from minllm.kernels.matmul.ladder import warp_per_row

show_source(
    warp_per_row.warp_per_row_kernel,
    notes={
        "for k in range": "Neighbouring lanes read neighbouring weights.",
        "warp_sum": "Five exchanges between the lanes.",
    },
)

# %% [markdown]
# Its loads coalesce, and it reads each weight once. But it has too few bytes in flight: a lane loads one number, and
# waits for it before it multiplies.
#
# **What you will be able to do**
#
# - say what a GEMV needs to reach the speed of memory, and count its bytes in flight;
# - say why 8 tokens are too many for a GEMV and too few for the tiles of lesson 5b;
# - explain the unified maximum of FlashDecoding++, and what it can and cannot gain.
#
# You need [lesson 5a](05a_matrix_products_in_tiles.py) and Little's law from [lesson 9](09_flash_decoding.py). You
# need no GPU.
#
# ## Predict
#
# All figures are for an H200, with weights in bfloat16.

# %% tags=["hide-input"]
from minllm.course import Prediction

guess = Prediction(
    warps="A warp of the engine's GEMV has a few KB in flight. How many warps per SM does Little's law need, "
    "of 64 that fit?",
    eight_over_one="By what factor does the engine's GEMV take longer for 8 tokens than for one? "
    "(The weight's bytes are the same.)",
    products_per_wanted="Tokens on the 128 rows of a tile: how many multiplications per useful one, for 8 tokens?",
    unified_gain="The paper reports that one maximum for all speeds up decode attention 1.14x. "
    "What speed-up do you expect here?",
)
guess.ask()

# %% [markdown]
# ## Write your own
#
# The body of the GEMV at the top is yours to write. When your kernel passes, it can generate text, and the report card
# says `matmul yours`.

# %% tags=["hide-input"]
from minllm.course import show_exercises

show_exercises("matmul.gemv")

# %% [markdown]
# ## GEMV
#
# The engine's kernel adds one thing to the kernel above: bytes in flight. A warp owns a few rows of the weight. Its
# lanes load 16 bytes each, and it issues *all* loads of a step before it uses the first value:

# %% tags=["hide-input"]
from minllm.kernels.matmul.gemv import gemv
from minllm.kernels.matmul.gemv import sums as gemv_sums

show_source(
    gemv_sums.make_accumulate_step,
    part="accumulate_step",
    folded="A step of the engine's GEMV",
    notes={
        "words = cuda.local.array": "Registers for everything in flight.",
        "w = load_128_streaming": "rows × unroll loads of 16 bytes, one after another. None is waited for here, and "
        "none displaces x in the L1 cache.",
        "cuda.syncwarp()": "Keeps the compiler from moving a load down to its use, to save registers.",
        "x_words = load_128(x": "x comes out of L1: every warp reads all of it.",
        "total[i, r] = dot": "The first use of a weight.",
    },
)

# %%
import ml_dtypes
import numpy as np

from minllm.sim import tracing

SMS, LATENCY = 132, 0.8e-6  # of an H200; latency in seconds, rounded
needed = tb_s * 1e12 * LATENCY  # bytes in flight, by Little's law

rng = np.random.default_rng(0)
x = rng.standard_normal((1, 512)).astype(ml_dtypes.bfloat16)  # [1, K]
weight = rng.standard_normal((32, 512)).astype(ml_dtypes.bfloat16)  # [N, K]
out = np.empty((1, 32), np.float32)  # [1, N]
with tracing() as traces:
    gemv.matmul_gemv(x, weight, out)
assert np.allclose(out, x.astype(np.float64) @ weight.astype(np.float64).T, atol=0.01)
for name in ("weight", "x"):
    traffic = traces[0].arrays[name].read
    print(
        f"{name:6}: {traffic.bytes:7,} bytes read, {traffic.unique_bytes:7,} "
        "different ones"
    )
assert traces[0].arrays["weight"].read.bytes == weight.nbytes

tiling = gemv.choose_tiling(1, 28672, 4096)
per_warp = tiling.rows * tiling.unroll * 32 * 16  # lanes, bytes per lane
warps_needed = needed / SMS / per_warp
print(
    f"a warp has {per_warp:,} bytes in flight: {warps_needed:.0f} warps per SM are "
    "enough, 64 fit"
)

first = np.empty((1, 32), np.float32)
warp_per_row.matmul_warp_per_row(x, weight, first)  # the kernel from the top

# %% tags=["hide"]
assert warps_needed < 32
assert np.allclose(first, out, atol=0.01)

# %% tags=["fold"]
from minllm.course import Bar, bars


def beside(row):
    """The library's figure for the same, if there is one."""
    return f"{row.peer} {row.peer_value:.2f}" if row.peer_value else ""


one_row = [row for row in recorded("matmul", "1x", "gemv") if row.case.startswith("1x")]
bars(
    [Bar(row.case.split(",")[0], row.value, beside(row)) for row in one_row],
    unit="TB/s",
    title="GEMV: tokens x features out x features in",
    limit=tb_s,
    limit_name="copy:",
    caption=f"bfloat16; {one_row[0].label}.",
)

# %% [markdown]
# The large GEMVs are near the speed of a copy. The smallest matrix is the furthest from it, because a kernel's prologue
# and epilogue, before its first and after its last load, weigh most there.
#
# Bytes in flight need room: every load has a place in L1 until it arrives, even one that bypasses L1. L1 is what shared
# memory leaves of an SM's 256 KB, and by default a kernel keeps the division of the kernel before it. Behind attention
# over an fp8 cache, which takes 200 KB, a GEMV ran at two thirds of its speed until it asked for a division of its own
# ([measured](../docs/serving-metrics.md#where-a-layers-time-goes)).
#
# !!! tip "Takeaway"
#     A GEMV is as fast as memory if enough bytes are in flight.
#
# ## Flat GEMMs
#
# The GEMV kernel multiplies number by number, and with 8 rows of $x$ that is too slow to keep up with memory. Tensor
# cores are fast enough, but libraries put the tokens on the large side of the tile and multiplied padding. In the
# transposed form, $\mathrm{out}^\top = W x^\top$, the weight is on the large side, and the tokens on the side that is a
# multiple of 8.

# %% tags=["fold"]
tokens = 8
bars(
    [
        Bar("tokens on 128 rows", 128 / tokens, "the tiles of lesson 5", 1),
        Bar("tokens on 64 rows", 64 / tokens, "what the paper found in libraries", 1),
        Bar("tokens on 8 columns", -(-tokens // 8) * 8 / tokens, "flat"),
    ],
    unit="times",
    title="Multiplications per useful one, 8 tokens",
    caption="Computed from the sizes of tiles.",
)

# %%
slower = microseconds["gemv"][8] / microseconds["gemv"][1]
print(
    f"gemv, 8 tokens instead of 1: {slower:.2f} times the time, though the bytes are "
    "nearly the same"
)

# %% tags=["hide"]
assert slower > 1.05

# %% [markdown]
# So [flat.py](../minllm/kernels/matmul/flat/flat.py) multiplies up to 256 rows with tensor cores, and its line in the
# first chart stays flat up to 64 tokens. Measurement decides where to switch from GEMV to flat GEMM to large tiles: the
# paper's third idea, heuristic dataflow. [dataflow.py](../minllm/kernels/matmul/dataflow.py) chooses from a table that
# was measured on the same GPU.
#
# !!! tip "Takeaway"
#     For 8 to 64 rows, put the weight on the large side of the tensor cores' tile.
#
# ## One maximum for all
#
# Back to attention. The running maximum is a chain: a tile's exponentials wait for its largest score, a reduction over
# all lanes, and the sums are rescaled. But the softmax is the same for *any* number that is subtracted:
#
# $$\mathrm{softmax}(s)_j = \frac{e^{s_j - \varphi}}{\sum_i e^{s_i - \varphi}} \qquad \text{for any } \varphi$$
#
# So fix $\varphi$ beforehand, from a model's statistics. Shares then need no maximum, and their sums simply add up.
# What is the catch? The exponentials are rounded to 16 bits for the tensor cores. They overflow if a score is far above
# $\varphi$, and become 0 if it is far below:

# %%


keys, head_dim = 300, 8
scores = 4 * rng.standard_normal((1, keys))  # [heads, keys]
values = rng.standard_normal((keys, head_dim))  # [keys, head_dim]
weights = np.exp(scores - scores.max())
at_once = weights @ values / weights.sum()  # [heads, head_dim]


def error_of(phi_above_maximum, dtype):
    """The output's error if phi is this many powers of 2 above the largest score."""
    base_2 = (scores - scores.max()) * np.log2(np.e)
    with np.errstate(over="ignore", invalid="ignore", under="ignore", divide="ignore"):
        weights = (
            np.exp2((base_2 - phi_above_maximum).astype(np.float32))
            .astype(dtype)
            .astype(np.float32)
        )
        return float(np.abs(weights @ values / weights.sum() - at_once).max())


offsets = range(-24, 41)
usable = {}
for name, dtype in (("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)):
    points = [(offset, error_of(offset, dtype)) for offset in offsets]
    points = usable[name] = [
        (offset, error) for offset, error in points if np.isfinite(error)
    ]
    print(
        f"{name:8}: usable from {points[0][0]} to {points[-1][0]} of {offsets[0]} to "
        f"{offsets[-1]}"
    )

# %% tags=["hide"]
assert usable["float16"][0][0] > -20 and len(usable["bfloat16"]) == len(offsets)

# %% tags=["fold"]
curves(
    usable,
    "powers of 2 by which φ is above the largest score",
    "largest error",
    "The band in which a unified maximum works",
    log_y=True,
    caption="300 random keys; computed. Where a line ends, weights overflow or all of "
    "them vanish.",
)

# %% [markdown]
# In float16 the band of $\varphi$ that works is narrow. bfloat16 has fewer digits, but almost the range of float32, and
# works everywhere in the chart. So the kernel needs a guard that checks the scores.
#
# Here are the running maximum, the unified maximum, and the guard:

# %% tags=["hide-input"]
from minllm.kernels.attention.ladder import unified_maximum
from minllm.kernels.attention.split_tensor_core import tile as split_tile

show_source(
    split_tile.make_softmax,
    part="fold",
    folded="The running maximum",
    notes={
        "maximum = maximum_over_rows": "Three exchanges between lanes, which everything below waits for.",
        "*= correction": "The output is rescaled.",
    },
)

# %% tags=["hide-input"]
show_source(
    unified_maximum.make_unified_softmax,
    part="fold_unified",
    folded="The unified maximum",
    notes={
        "exponent = ": "maxima holds φ and never changes.",
        "highest = max": "Each lane for itself: what the guard checks.",
    },
)

# %% tags=["hide-input"]
show_source(
    unified_maximum.make_unified_softmax,
    part="failed",
    folded="The guard",
    notes={
        "return int32(1)": "Too high anywhere, or a sum so small that its weights have lost their digits: this share is not valid.",
    },
)

# %% [markdown]
# If the scores of a share (the keys of one block, as in lesson 9) leave the band, its block computes its tiles again
# with the running maximum, in the same launch. A state contains the maximum that it was computed with, so both kinds
# can be merged. Here one key out of 256 is so similar to the query that its score leaves the band.

# %%
from minllm.kernels.attention import VARIANTS
from minllm.kernels.attention.reference import attention_reference
from minllm.kernels.attention.split_tensor_core.block_sizes import SplitShape

small = dict(
    sm_count=4, shape=SplitShape(warps=1, keys=16, stages=2, blocks=1)
)  # four slots
context, heads, head_dim = 256, 4, 64  # query heads of one KV head
query = rng.standard_normal((1, heads, head_dim)).astype(ml_dtypes.bfloat16)
cache = rng.standard_normal((2, context // 16, 16, 1, head_dim)).astype(
    ml_dtypes.bfloat16
)
key_cache, value_cache = cache  # [num_blocks, block_size, kv_heads, head_dim]
block_table = rng.permutation(context // 16).astype(np.int32)[None]
layout = np.int32([0, 1]), np.int32([context]), block_table
scale, out = head_dim**-0.5, np.empty_like(query)

moved = {}
for name, factor in (("ordinary keys", 0), ("one huge score", 30)):
    changed = key_cache.copy()
    if factor:
        changed[block_table[0, 5], 3] = (
            factor * query[0, 0].astype(np.float32)
        ).astype(key_cache.dtype)
    right = attention_reference(
        query.astype(np.float32), changed, value_cache, *layout, scale
    )
    with tracing() as traces:
        VARIANTS["split_unified_maximum"].attention(
            query, changed, value_cache, out, *layout, scale, **small
        )
    assert np.allclose(out.astype(np.float32), right, atol=0.01)
    (trace,) = traces
    moved[name] = trace.arrays["key_cache"].total.bytes
    print(f"{name:15} {moved[name]:,} bytes of keys, result correct")

# %% tags=["hide"]
assert (
    moved["one huge score"] == moved["ordinary keys"] * 5 / 4
)  # one of four shares is computed again

# %% [markdown]
# Does it pay? The paper reports 1.14 times the speed of decode attention, on GPUs and against kernels of its time. But
# a step waits for memory. The unified maximum saves arithmetic and exchanges between lanes. If these overlap with the
# loads already, there is nothing to gain.

# %%
slower = microseconds["gemv"][8] / microseconds["gemv"][1]
long = "64x4096, 32/8 heads, d 128, bfloat16, contiguous"
(unified,) = recorded("decode attention", long, "split_unified_maximum", listed=True)
(running,) = recorded("decode attention", long, "split_tensor_core", listed=True)
for row in (unified, running):
    print(listing([row]))

# %% tags=["hide-input"]
guess.against(
    warps=warps_needed,
    eight_over_one=slower,
    products_per_wanted=128 / 8,
    unified_gain=unified.value / running.value,
)

# %% [markdown]
# No gain: the engine chooses [split_tensor_core](../minllm/kernels/attention/split_tensor_core/split_tensor_core.py).
# If two kernels are equally fast, the one that needs no statistics and no guard is better. (The two rows are from
# different commits if their labels say so.)
#
# !!! tip "Takeaway"
#     One fixed maximum saves rescaling, but a decode step waits for memory, not for that.
#
# ## Measured against predicted
#
# One token is at 1 FLOP per byte on the roofline, and a larger batch moves right along the slope:

# %% tags=["fold"]
from minllm.course import Dot, comparable, roofline

flat = [row for row in recorded("matmul", "x4096x14336, bfloat16", "flat", listed=True)]
flat = list(comparable(*(row for row in flat if row.commit == flat[0].commit)))
dots = []
for row in flat:
    M = int(row.case.split("x")[0])
    work = 2 * M * 4096 * 14336
    intensity = work / (2 * (M * 14336 + 4096 * 14336 + M * 4096))
    dots.append(Dot.of_bandwidth(f"{M} token{'s' * (M > 1)}", intensity, row.value))
roofline(
    dots,
    tb_s,
    tflops,
    "Flat GEMMs, 4,096 x 14,336",
    caption=f"bfloat16; {flat[0].label}.",
)

# %% [markdown]
# ## Exercises
#
# This lesson's exercise is above. In it each lane has one load in flight: how many warps does an SM need then?
#
# ## A detective case

# %% tags=["hide-input"]
from minllm.course import show_case

show_case("rare_nan")

# %% [markdown]
# ## Problems
#
# ??? question "1. A GEMV with 4,096 x 4,096 weights in bfloat16, launched on an H200. What is its floor at 4.2 TB/s, and why does it not reach it?"
#     33.5 MB take 8 µs. A launch with prologue and epilogue costs 1 to 2 µs in which nothing is read, so it reaches 80
#     to 90 % at most.
#
# ??? question "2. The tiles of lesson 5b have 128 rows. What share of their multiplications is useful for 8 and for 96 tokens?"
#     6 % and 75 %. At 96 tokens the padding no longer matters, because the GPU is still limited by memory.
#
# ??? question "3. float16 ends at 65,504 = 2^16 - 2^5. Exponentials are 2^(s - φ). How far may a score be above φ, and how far below, if sums of 4,096 of them must not overflow and each must keep 3 digits?"
#     Above: the exponential itself must stay below 65,504, so s - φ below 16; a sum in float32 is safe. Below: normal
#     float16 ends at 2^-14. So the band is 30 powers of 2.
#
# ??? question "4. A server decodes 8 sequences. Its GEMMs run as 8 GEMVs one after another. What does that cost against a flat GEMM?"
#     The weights are read 8 times. It takes nearly 8 times as long, and the price per token stays as at batch 1.
#     Batching gains nothing without shared reads.
#
# ??? question "5. Weights go to 4 bits (0.5 bytes). At which batch does the flat GEMM reach the ridge of an H200 (about 190 FLOP per byte), and what does that mean for hardware?"
#     Intensity is 4 M: the ridge is at 48 tokens instead of 190. Quantised weights make a server compute-bound at
#     smaller batches. More bandwidth then gains nothing.
#
# ## What next
#
# The bars of the GEMV and the roofline show kernels close to the limit that the bytes set. The next gains come from
# reading fewer bytes and wasting less memory. Sequences with the same beginning can share its keys, and memory need not
# be reserved before it is used: [lesson 11](11_paged_blocks_and_shared_prefixes.py). In 8 bits, keys and values take
# half the bytes: lesson 13.
#
# ## Sources
#
# - K. Hong et al., "FlashDecoding++: Faster Large Language Model Inference on GPUs", MLSys 2024 (arXiv 2311.01282),
#   sections 3 to 5.
# - V. Volkov, "Better Performance at Lower Occupancy", GTC 2010: bytes in flight.
# - NVIDIA, "PTX ISA", sections "ld", "ldmatrix", "mma", "movmatrix", "cp.async".
