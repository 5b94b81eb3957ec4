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
# # 5b. Matrix products on Hopper: TMA, wgmma, and warps with roles
#
# The tensor cores of a Hopper GPU consume their operands faster than threads can address and copy them. So its fast
# GEMMs do not let them: one thread requests a whole tile, one instruction multiplies it, and different warps do the two.
# These are the upper rungs of [lesson 5a](05a_matrix_products_in_tiles.py)'s ladder:

# %% tags=["fold"]
from minllm.course import Bar, bars, comparable, load_record, recorded

ceilings = load_record()[
    "ceilings"
]  # one H200, measured with the driver's copy and with cuBLAS
tb_s, tflops = ceilings["copy_tb_s"], ceilings["bf16_tflops"]
every_rung = recorded("matmul", "2048x2048x2048, bfloat16", listed=True)
rows = list(
    comparable(*(row for row in every_rung if row.commit == every_rung[0].commit))
)
order = [
    "tensor_core",
    "warpgroup",
    "warp_specialized",
    "wgmma",
]
rows = [row for row in rows if row.variant in order]
rows.sort(key=lambda row: order.index(row.variant))
steps = [
    Bar(row.variant, row.value, f"{100 * row.value / tflops:.2g} %") for row in rows
]
peer = max((row for row in rows if row.peer_value), key=lambda row: row.peer_value)
bars(
    [
        *steps,
        Bar(
            peer.peer,
            peer.peer_value,
            f"{100 * peer.peer_value / tflops:.2g} %",
            colour=1,
        ),
    ],
    unit="TFLOP/s",
    title="2,048 × 2,048 × 2,048 in bfloat16",
    limit=tflops,
    limit_name="best GEMM measured:",
    caption=f"cuBLAS is NVIDIA's own library; {rows[0].label}.",
)

# %% [markdown]
# $$\text{one step of } K: \quad \mathrm{out}_{64 \times 256} \mathrel{+}= x_{64 \times 64}\, w_{256 \times 64}^\top
# \qquad \frac{64 \cdot 256}{64 + 256} = 51\ \text{FLOP per byte}$$
#
# - **TMA**, the tensor memory accelerator, copies a tile to shared memory in the swizzled order; one thread requests it.
#   An *mbarrier*, a barrier in shared memory that counts bytes too, tells when all have arrived;
# - **wgmma**: a *warpgroup* of four warps multiplies a tile of 64 rows, both operands directly from shared memory.
#
# The smallest GEMM with both is a loop of three steps: load a tile of each operand, wait for it, multiply.

# %% tags=["hide-input"]
from minllm.course import show_source
from minllm.kernels.matmul.ladder import warpgroup

show_source(
    warpgroup.warpgroup_kernel,
    part="matmul_warpgroup_kernel",
    folded="The warpgroup kernel",
    notes={
        "ptx.mbarrier_arrive_expect_tx": "One thread tells the mbarrier how many bytes to expect, and loads.",
        "ptx.mbarrier_wait_parity": "All threads wait. Nothing else happens in this block until the tiles are there.",
        "wgmma.multiply(sums": "64 × 256 outputs, 64 steps of K: two million operations, in four instructions.",
        "cuda.syncthreads()  #": "And TMA waits here, until the tensor cores are done.",
        "store_sums(": "The epilogue, as on rung 4: each thread stores its sums in pairs.",
    },
)

# %% [markdown]
# **What you will be able to do**
#
# - explain what TMA, an mbarrier and wgmma take over from the threads;
# - write the producer of a ring, and say what its consumer waits for;
# - name the limit that remains: shared memory, L2, or the gaps between tiles.
#
# You need [lesson 5a](05a_matrix_products_in_tiles.py).
#
# ## Predict
#
# In rungs 5 and 6 a block computes a tile of 64 by 256 outputs.

# %% tags=["hide-input"]
from minllm.course import Prediction

guess = Prediction(
    tile_tb_s="At the speed of the best GEMM measured, how many TB/s of tiles do the blocks of rung 5 load? "
    "(HBM delivers about 4.)",
    stages="A stage of a ring holds 64 x 64 of x and 256 x 64 of weight in bfloat16. How many stages fit in 227 KB?",
    unspecialized_over_specialized="At 8192 x 8192 x 8192, how much faster is rung 5 (no producer, one stage) than rung 6 "
    "(a producer warp, four stages)?",
)
guess.ask()

# %% [markdown]
# ## Rung 6: warp specialisation
#
# **Idea: give the two halves of the step to different warps.** A **producer** warp only starts TMA loads. A
# **consumer** warpgroup only multiplies. Between them is a ring of four stages with two mbarriers each: *full*, for
# which the consumer waits, and *empty*, for which the producer waits. The two need not run in step.
#
# ```mermaid
# flowchart LR
#     P["producer<br/>one thread"] -- "expect bytes,<br/>start 2 loads" --> F["full"]
#     F -- "wait" --> C["consumer<br/>4 warps: wgmma"]
#     C -- "release" --> E["empty"]
#     E -- "acquire" --> P
# ```
#
# Write the producer:

# %% tags=["hide-input"]
from minllm.course import show_exercises

show_exercises("matmul.producer")

# %% [markdown]
# Now see the engine's, and the consumer on the other side:

# %% tags=["hide-input"]
from minllm.kernels.matmul.ladder import warp_specialized

show_source(
    warp_specialized.make_produce,
    part="produce",
    folded="The producer",
    notes={
        "pipeline.producer_acquire(": "Wait until the consumer has released this stage of the ring.",
        "pipeline.producer_expect(": "As on rung 5; only now four tiles may be on their way.",
        "pipeline.advance(state)": "Around the ring: the state's phase tells the rounds of a stage apart.",
    },
)

# %% tags=["hide-input"]
show_source(
    warp_specialized.make_consume,
    part="consume",
    folded="The consumer",
    notes={
        "pipeline.consumer_wait(": "Wait until this stage's tiles have arrived.",
        "wgmma.wait(sums": "Until the tensor cores have read the tiles...",
        "pipeline.consumer_release(": "...which the producer may then overwrite.",
    },
)

# %% [markdown]
# First without a ring, rung 5:

# %% tags=["fold"]
import ml_dtypes
import numpy as np

from minllm.course import Span, timeline
from minllm.sim import tracing

rng = np.random.default_rng(0)
tall, wide = (
    rng.standard_normal((rows, 512)).astype(ml_dtypes.bfloat16) for rows in (64, 256)
)  # K = 512


def rounds(matmul):
    """Run a rung in the simulator for one tile of out, check it, and return when each
    tile of x and weight did what."""
    out = np.empty((64, 256), ml_dtypes.bfloat16)  # [M, N]
    with tracing() as traces:
        matmul(tall, wide, out)
    exact = tall.astype(np.float64) @ wide.astype(np.float64).T
    assert np.allclose(out.astype(np.float64), exact, atol=1.0)
    read = traces[0].total.bytes - out.nbytes
    print(f"{traces[0].tensor_core_flops / read:.1f} FLOP per byte of tiles")
    return traces[0].stages


def show_rounds(stages, title):
    """A row per stage: a tile on its way, arrived, being multiplied."""
    spans = []
    for one in stages:
        spans += [
            Span(f"stage {one.stage}", one.issued, one.arrived, "copy"),
            Span(f"stage {one.stage}", one.arrived, one.used, "full", colour=2),
            Span(f"stage {one.stage}", one.used, one.done, "used", colour=1),
        ]
    caption = "Order of events in one block, simulated; widths are not times."
    return timeline(spans, "", title, caption=caption)


alone = rounds(warpgroup.matmul_warpgroup)

# %% tags=["hide"]
assert all(
    later.issued > one.done for one, later in zip(alone, alone[1:], strict=False)
)

# %% tags=["fold"]
show_rounds(
    alone, "One stage: a tile is copied, then multiplied, then the next is copied"
)

# %% [markdown]
# While a tile is copied, this block uses no tensor cores, and while they work, nothing is copied. Only other blocks on
# the same SM can fill the gaps; the registers suffice for three.
#
# With the ring:

# %%
ring = rounds(warp_specialized.matmul_warp_specialized)
ahead = max(
    sum(one.issued <= moment < one.done for one in ring)
    for moment in range(ring[-1].done)
)
print(f"up to {ahead} stages hold a tile, or wait for one, at the same time")

# %% tags=["hide"]
assert ahead == warp_specialized.STAGES

# %% tags=["fold"]
show_rounds(ring, "A ring of four stages: copied, full, in use, and copied again")

# %% [markdown]
# The same kernel, event by event, with its barriers ([on its own page](../docs/pipeline.md)):
#
# <!-- interactive: pipeline -->
#
# !!! tip "Takeaway"
#     Two barriers per stage replace the barrier of the whole block: copies and products overlap within one block.
#
# ## Rung 7: everything at once
#
# **Idea: fewer bytes, and no pauses between tiles.** The engine's kernel adds four things:
#
# - **more reuse**: two consumers share a tile of weight, so a block has 128 rows of $x$; two blocks form a *cluster*,
#   and each loads half of that tile for both (multicast);
# - **one wgmma in flight**: a consumer starts a step's wgmma *before* it waits for the previous one, so the tensor
#   cores have work while a stage is released;
# - **a persistent kernel**: one block per SM, which computes one tile of outputs after another. The producer loads
#   the next tile's first steps while the consumers still store this one;
# - **an epilogue by TMA**: sums go through shared memory, and are stored in whole rows while the next tile is
#   multiplied. Bias, residual or SwiGLU's gate are applied on the way.

# %% tags=["hide-input"]
from minllm.kernels.matmul.wgmma import wgmma

show_source(
    wgmma.wgmma_kernel,
    part="matmul_wgmma_kernel",
    folded="The kernel wgmma, from top to bottom",
    notes={
        "pipeline.producer_acquire(": "The producer, as on rung 6; it does not stop between tiles.",
        "while number <": "One tile of outputs after another: the kernel is persistent.",
        "wgmma.multiply(sums": "A step's product is started here; it runs on while the threads go on.",
        "wgmma_wait_group_1": "Let one product be in flight, and no more: those before it are complete.",
        "pipeline.consumer_release(": "So the stage before is free to be filled again, in both blocks of a cluster.",
        "store(sums": "Sums go from registers to shared memory, and out by TMA.",
    },
)

# %%
from minllm.kernels.matmul.wgmma.tiling import WgmmaTiling

with tracing() as traces:
    out = np.empty((64, 256), ml_dtypes.bfloat16)  # [M, N]
    wgmma.matmul_wgmma(tall, wide, out, tiling=WgmmaTiling(1, 64, 3))
print(f"{traces[0].tensor_core_flops:,} operations, {traces[0].total.bytes:,} bytes")

# %% tags=["hide"]
assert np.allclose(
    out.astype(np.float64),
    tall.astype(np.float64) @ wide.astype(np.float64).T,
    atol=1.0,
)

# %% [markdown]
# !!! tip "Takeaway"
#     Larger tiles cut the bytes, a persistent kernel cuts the gaps between tiles. Both need a producer that runs ahead.
#
# ## Measured against predicted

# %% tags=["hide-input"]
speeds = {row.variant: row.value for row in every_rung}
large = {
    row.variant: row.value
    for row in recorded("matmul", "8192x8192x8192, bfloat16", listed=True)
}
guess.against(
    tile_tb_s=tflops * (64 + 256) / (64 * 256),
    stages=227 * 1024 // ((64 + 256) * 64 * 2),
    unspecialized_over_specialized=large["warpgroup"] / large["warp_specialized"],
)

# %% tags=["fold"]
from minllm.course import listing

shown = [
    row
    for variant in ("warpgroup", "warp_specialized")
    for row in recorded("matmul", "", variant, listed=True)
]
print(listing(shown))
rungs = {(row.case.partition("x")[0], row.variant): row.value for row in shown}
gain = {
    int(size): rungs[size, "warp_specialized"] / rungs[size, "warpgroup"]
    for size in ("2048", "4096", "8192")
}

# %% tags=["hide"]
assert gain[2048] > 1.1 and 0.9 < gain[4096] < 1 and gain[8192] < 0.8
assert speeds["wgmma"] > 128 * 256 / (128 + 256) * tb_s

# %% [markdown]
# At that speed rung 5 would load nearly four times what HBM delivers. Blocks that run at the same time share tiles, so
# most of the bytes come from L2, the cache between the SMs and HBM; but L2 has a limit, too.
#
# A producer alone makes the smallest of these GEMMs faster, and the larger ones slower. It hides the latency of loads,
# but its ring of four stages takes 160 KB, so an SM holds one such block. It holds three blocks of rung 5: while one
# waits or stores, another multiplies. At 2,048 cubed there are only two tiles per SM, so rung 5 cannot use all three.
# Warp specialisation makes rung 7's gains possible: with the producer ahead, a block needs no other block to fill its
# gaps, and can use its shared memory for larger tiles. (This explains the figures; it has not been profiled.)
#
# A block of `tensor_core` or `wgmma` requests one byte per 85 operations. If every byte came from HBM, the limit would
# be some 360 TFLOP/s; most come from L2, so `wgmma` is faster than that. On a machine with a GPU, this cell measures:

# %% tags=["fold"]
from minllm.course import has_gpu

if has_gpu():
    from minllm.course import machine_line, product_rates

    print(machine_line())
    for variant, rate in product_rates(order, 2048, 2048, 2048).items():
        print(f"{variant:12} {rate}")
else:
    print("No GPU here: nothing was timed on this machine.")

# %% [markdown]
# ## Exercises
#
# This lesson's exercise is the producer above. Once it passes, set `STAGES` in
# [warp_specialized.py](../minllm/kernels/matmul/ladder/warp_specialized.py) to 2, and look at the ring again: how many tiles are
# under way, and who waits for whom?
#
# ## A detective case

# %% tags=["hide-input"]
from minllm.course import show_case

show_case("last_tile")

# %% [markdown]
# ## Problems
#
# ??? question "1. At 800 TFLOP/s, how many TB/s do tiles of 128 x 256 need? HBM has 4.2. Where does the rest come from?"
#     They request one byte per 85.3 operations: 9.4 TB/s. At least 5.2 TB/s come from L2: neighbouring blocks read the
#     same rows.
#
# ??? question "2. The consumer needs 0.35 µs for a step, a load takes 1 µs to arrive. How many stages keep the tensor cores busy?"
#     1 / 0.35 = 2.9: the loads of three steps must be under way while one is multiplied. Three stages, and the one in
#     use: four.
#
# ??? question "3. A block of wgmma keeps 128 x 256 sums in float32. How many registers is that per thread of two warpgroups?"
#     32,768 sums for 256 threads: 128 registers each, of 255 that a thread can have.
#
# ??? question "4. 132 SMs, tiles of 128 x 256, a result of 2,048 x 2,048. How many tiles, and what share of the machine is idle?"
#     16 · 8 = 128 tiles for 132 SMs: 3 % idle. A result of 2,304 x 2,048 has 144 tiles and needs two waves: 45 % idle
#     in all. With smaller tiles and a persistent kernel less is idle.
#
# ??? question "5. Multicast lets two blocks of a cluster share a tile of weight, 256 x 64. How many bytes per step does a block save?"
#     Half of 256 · 64 · 2 = 32 KB: 16 KB, of 48 KB that a block with 128 rows of x would load.
#
# ## What next
#
# Everything above had 2,048 tokens. A decode step of one sequence has one. Then every weight is used once, no tile can
# help, and the limit is the speed of memory:

# %% tags=["hide-input"]
shapes = ("1x28672x4096", "1x4096x14336")
print(listing(row for one in shapes for row in recorded("matmul", one, listed=True)))

# %% [markdown]
# That is the subject of [lesson 9](09_flash_decoding.py) and [lesson 10](10_flash_decoding_plus_plus.py).
#
# Before that, look at the kernels between the GEMMs. Norms, rotations and activations do almost no arithmetic. But the
# faster the GEMMs become, the larger is the share of these small kernels: [lesson 6](06_norms_rope_swiglu_fusion.py).
#
# ## Sources
#
# - NVIDIA, "CUTLASS: Fast Linear Algebra in CUDA C++", 2017: the tile hierarchy.
# - NVIDIA, "CUTLASS", "Efficient GEMM in CUDA", section "Warp Specialization".
# - NVIDIA, "PTX ISA", sections "wgmma", "cp.async.bulk.tensor", "mbarrier".
