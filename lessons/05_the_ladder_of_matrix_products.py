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
# # 5. The ladder of matrix products
#
# Nearly all arithmetic of a language model is GEMM, general matrix multiply. The obvious way to write one reaches about
# a thousandth of the machine's speed. In this lesson you climb from there, one idea per rung: reuse, wide loads, tensor
# cores, TMA, and warps with different roles.
#
# This is the whole ladder, measured on an H200:

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
    "naive",
    "tiled",
    "vectorized",
    "tensor_core",
    "warpgroup",
    "warp_specialized",
    "wgmma",
]
rows.sort(
    key=lambda row: order.index(row.variant) if row.variant in order else len(order)
)
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
    log=True,
    caption="The axis is logarithmic. cuBLAS is NVIDIA's own library; "
    f"{rows[0].label}.",
)

# %% [markdown]
# $$\mathrm{out}_{m,n} = \sum_k x_{m,k}\, w_{n,k} \qquad x\ [M, K], \quad w\ [N, K], \quad \mathrm{out}\ [M, N]$$
#
# $M$ is the number of tokens, $K$ the number of input features, $N$ the number of output features: $2MNK$ operations.
#
# The chart shows the rungs of one recording; rungs of another commit are listed further down. The lowest bar is this
# kernel, one thread per number of the result:

# %% tags=["hide-input"]
from minllm.course import show_source
from minllm.kernels.matmul import naive

show_source(
    naive.matmul_naive_kernel,
    notes={
        "column = cuda.blockIdx.x": "Neighbouring threads have neighbouring columns of out, and so neighbouring "
        "*rows* of weight.",
        "row < out.shape[0]": "The grid is rounded up: do nothing beyond the edge.",
        "total += ": "Two operations for two numbers that are fetched.",
    },
    docstring=False,
)

# %% [markdown]
# **What you will be able to do**
#
# - say how many bytes a tile saves, and how large a tile a machine needs;
# - read the counts of the simulator: sectors, bank conflicts, operations per byte;
# - explain each rung by the limit that it removes, and name the next limit.
#
# You need [lesson 2](02_your_first_kernel.py) for kernels, shared memory and coalescing, and [lesson
# 4](04_arithmetic_intensity_and_the_roofline.py) for the roofline.
#
# ## Predict
#
# Two matrices of 2,048 by 2,048 numbers in bfloat16 (2 bytes each) are multiplied on an H200. In rungs 5 and 6 a block
# computes a tile of 64 by 256 outputs.

# %% tags=["hide-input"]
from minllm.course import Prediction

guess = Prediction(
    flops="How many floating-point operations is that?",
    least_bytes="How many bytes, if each matrix is moved once?",
    limit=("What is the limit then?", "memory", "arithmetic"),
    tile_tb_s="At the speed of the best GEMM measured, how many TB/s of tiles do the blocks of rung 5 load? "
    "(HBM delivers about 4.)",
    unspecialized_over_specialized="At 8192 x 8192 x 8192, how many times as fast as rung 6 (a producer warp, "
    "four stages) is rung 5 (no producer, one stage)?",
)
guess.ask()

# %% [markdown]
# ## The limit

# %%
M = N = K = 2048
flops = 2 * M * N * K
least_bytes = (M * K + N * K + M * N) * 2
memory_us, arithmetic_us = least_bytes / tb_s / 1e6, flops / tflops / 1e6
print(
    f"{flops / 1e9:.1f} GFLOP, {least_bytes / 1e6:.1f} MB, {flops / least_bytes:.0f} "
    "FLOP per byte"
)
print(
    f"H200: {memory_us:.1f} µs to move the bytes, {arithmetic_us:.1f} µs for the "
    "operations"
)
assert arithmetic_us > 3 * memory_us

# %% [markdown]
# So arithmetic is the limit, if each number is loaded only once from HBM, the GPU's memory. This lesson is about that
# "if". Every number of $x$ is needed $N$ times, every weight $M$ times. The rungs differ in where these repeated loads
# come from.
#
# ## Rung 1: naive
#
# Every rung runs in the simulator, with 64 tokens, 64 output features and 32 input features:

# %%
import ml_dtypes
import numpy as np

from minllm.sim import tracing

rng = np.random.default_rng(0)
size, depth = 64, 32
x, weight = (
    rng.standard_normal((size, depth)).astype(ml_dtypes.bfloat16) for _ in range(2)
)  # [M, K], [N, K]
expected = x.astype(np.float64) @ weight.astype(np.float64).T  # [M, N]
counted = {}


def count(name, matmul, **options):
    """Run a rung in the simulator, compare its result, and print what it moved."""
    out = np.empty((size, size), ml_dtypes.bfloat16)  # [M, N]
    with tracing() as traces:
        matmul(x, weight, out, **options)
    assert np.allclose(
        out.astype(np.float64), expected, atol=0.01 * np.abs(expected).max()
    )
    trace = counted[name] = traces[0]
    read = trace.total.bytes - out.nbytes
    requests = sum(array.read.requests for array in trace.arrays.values())
    print(
        f"{name}: {read:,} bytes in {requests:,} requests, "
        f"{trace.total_flops / read:.1f} FLOP per byte"
    )
    print(
        "  sectors per request: "
        f"{trace.arrays['weight'].read.sectors_per_request:.0f} of weight,",
        end=" ",
    )
    print(
        f"{trace.arrays['x'].read.sectors_per_request:.0f} of x; bank conflicts: "
        f"{trace.bank_conflicts}"
    )


count("naive", naive.matmul_naive)

# %% tags=["hide"]
trace = counted["naive"]
assert (
    trace.arrays["x"].read.bytes
    == trace.arrays["weight"].read.bytes
    == 2 * size**2 * depth
)
assert trace.arrays["weight"].read.sectors_per_request == 16

# %% [markdown]
# The naive kernel does half an operation per byte: it loads two numbers of 2 bytes for a multiplication and an
# addition. And a warp's request for weights touches 16 sectors of 32 bytes, to get 2 bytes from each. The rest of each
# sector is needed in the next steps, so caches help a lot. But the caches have to deliver $2MNK$ numbers, which is too
# much for them as well.
#
# ## Rung 2: tiled
#
# **Idea: load once, use often.** A block of threads computes a tile of the result, say $64 \times 64$. It needs 64 rows
# of $x$ and 64 rows of weight. All its threads together copy some columns of these rows into shared memory, wait until
# the copy is complete, and multiply from there. Each number loaded is used 64 times.
#
# ```mermaid
# flowchart LR
#     A["x, weight<br/>global memory"] -- "once<br/>per tile" --> B["two tiles<br/>shared memory"]
#     B -- "16 numbers,<br/>64 products" --> C["8 × 8 sums<br/>registers"]
# ```
#
# A tile of $t \times t$ results moves $2t$ numbers for $2t^2$ operations: $t / \mathrm{itemsize}$ operations per byte.
# The same idea works with registers: each thread computes a small block of results, so it uses each number from shared
# memory several times.

# %% tags=["hide-input"]
from minllm.kernels.matmul import tiled

show_source(
    tiled.tiled_kernel,
    folded="The tiled kernel",
    notes={
        "padded = tile + 1": "One word too many in each row of the tile, against bank conflicts.",
        "copy_tile(x_tile, x": "All threads together copy a piece of both matrices.",
        "cuda.syncthreads()": "Wait: the tile is complete only when all have copied.",
        "x_values[i] = x_tile": "From shared memory into registers, once.",
        "total[i, j] +=": "per_thread × per_thread multiply-adds from 2 × per_thread numbers.",
        "no thread may overwrite": "Wait again: without this barrier a fast thread overwrites the tile that a slow one still reads.",
    },
)

# %%
count("tiled", tiled.matmul_tiled, tile=(64, 16, 8))

# %% tags=["hide"]
trace = counted["tiled"]
assert (
    trace.arrays["x"].read.bytes == 2 * size * depth
)  # each number once: the tile is as large as out here
assert int(trace.total_flops / (2 * trace.arrays["x"].read.bytes)) == 64 // 2

# %% [markdown]
# It loads 64 times fewer bytes, and full sectors. The engine's large tile has $t = 128$: 64 operations per byte.
#
# <!-- aside: Bank conflicts -->
#
# Shared memory has 32 banks, word $w$ is in bank $w \bmod 32$, and a bank serves one word at a time. The tile's slow
# axis is $k$, so a thread that copies along $k$ goes down a column. If a row of the tile had 64 words, a whole column
# would be in one bank. The row has 65, so the column is spread over the banks. The charts show the stores of a warp's
# 32 lanes, 16 along one row of $x$ and 16 along the next:

# %% tags=["fold"]
from minllm.course import heat_map


def turns(pitch):
    """[turns, banks]: 1 where a bank works. Lanes store k = 0 to 15 of two rows; from k
    to k + 1 are `pitch` words."""
    banks = [(k * pitch + row) % 32 for row in range(2) for k in range(16)]
    waiting = [banks.count(bank) for bank in range(32)]
    return np.array(
        [
            [1.0 if count > turn else np.nan for count in waiting]
            for turn in range(max(waiting))
        ]
    )


heat_map(
    turns(64),
    "Rows of 64 words: 16 turns, two banks at work",
    row_names=[f"turn {turn + 1}" for turn in range(16)],
    column_names=[str(bank) for bank in range(32)],
    caption="Computed from the addresses. Columns are the 32 banks of shared memory.",
    series=1,
)

# %% tags=["fold"]
heat_map(
    turns(65),
    "Rows of 65 words: 2 turns",
    row_names=["turn 1", "turn 2"],
    column_names=[str(bank) for bank in range(32)],
    caption="One word of padding per row. Not perfect: lane k of the second row meets "
    "lane k + 1 of the first.",
)

# %%
stores = [line for line in trace.shared if line.kind == "write"]
for line in stores:
    print(
        f"{line.array}: {line.requests} stores take {line.turns} turns, "
        f"{line.worst}-way conflicts"
    )
assert all(line.worst == len(turns(65)) for line in stores)

# %% [markdown]
# The simulator counts the same. With steps of 32 along $k$ a warp stores a single row, without conflicts:

# %%
count("tiled, steps of 32", tiled.matmul_tiled, tile=(64, 32, 4))
assert counted["tiled, steps of 32"].bank_conflicts == 0

# %% [markdown]
# <!-- end aside -->
#
# ## Rung 3: vectorized
#
# **Idea: fewer, wider instructions.** The tiled kernel issues one load per number. A thread can load 16 bytes at once,
# 8 numbers in bfloat16, and read 4 words of shared memory at once. It can also load the next tile *before* it
# multiplies this one, so that it computes during the wait for memory.

# %% tags=["hide-input"]
from minllm.kernels.matmul import vectorized

show_source(
    vectorized.vectorized_kernel,
    folded="The vectorized kernel",
    notes={
        "def load_eight": "Two loads of 16 bytes instead of eight of 4.",
        "read_tile(x_ahead, x, first_row, 0": "The first tile, into registers.",
        "lay_down(x_tile, x_ahead": "From registers into shared memory.",
        "read_tile(x_ahead, x, first_row, first_k": "The next tile is in flight from here on...",
        "total[i, j] +=": "...while this one is multiplied.",
    },
)

# %%
count("vectorized", vectorized.matmul_vectorized, tile=64)

# %%
loads = {
    name: sum(array.read.requests for array in counted[name].arrays.values())
    for name in counted
}
words = {
    name: sum(line.requests for line in counted[name].shared if line.kind == "read")
    for name in counted
}
print(
    f"requests to global memory: tiled {loads['tiled']}, vectorized "
    f"{loads['vectorized']}"
)
print(
    f"requests to shared memory: tiled {words['tiled']}, vectorized "
    f"{words['vectorized']}"
)
assert (
    loads["tiled"] == 8 * loads["vectorized"]
    and words["tiled"] == 4 * words["vectorized"]
)

# %% [markdown]
# The bytes are the same. The requests fall to an eighth and a quarter.
#
# ## Rung 4: tensor cores
#
# The limit is now arithmetic. A streaming multiprocessor (SM) does 128 multiply-adds per cycle in its ordinary units:
# 67 TFLOP/s for a whole H200, by its data sheet, less than a tenth of what its tensor cores do. No kernel that
# multiplies number by number is faster than that.
#
# **Idea: one instruction for a whole small GEMM.** A tensor core multiplies a $16 \times 16$ by a $16 \times 8$ matrix
# in one instruction of a warp: 4,096 operations, while the warp's ordinary instruction does 64. The three matrices are
# spread over the registers of the 32 lanes, in an order that the hardware dictates; `ldmatrix`, a special load, puts
# the operands there. Such an instruction consumes its operands so fast that copies must be asynchronous: `cp.async`
# starts a copy from global to shared memory, and the warp continues. A ring of tiles keeps the next ones in flight:

# %% tags=["hide-input"]
from minllm.kernels.matmul import fragments

show_source(
    fragments.make_multiply_step,
    folded="One step of a warp: ldmatrix, then mma",
    notes={
        "a = cuda.local.array": "This lane's part of the operands: A from x, B from weight.",
        "place_of_chunk(row, chunk)": "Chunks of 16 bytes lie in shared memory in a shuffled order, the swizzle, so that "
        "the eight rows that one load wants lie in eight different groups of banks. It does without padding.",
        "multiply(total": "The instruction: 4,096 operations.",
    },
)

# %%
from minllm.kernels.matmul import tensor_core

tiling = tensor_core.TensorCoreTiling(64, 64, 32, 2, 2, stages=3)
count("tensor_core", tensor_core.matmul_tensor_core, tiling=tiling)
assert counted["tensor_core"].bank_conflicts == 0

long_x, long_weight = (
    rng.standard_normal((64, 256)).astype(ml_dtypes.bfloat16) for _ in range(2)
)  # K = 256
with tracing() as traces:
    tensor_core.matmul_tensor_core(
        long_x, long_weight, np.empty((64, 64), ml_dtypes.bfloat16), tiling=tiling
    )

# %% tags=["fold"]
from minllm.course import Span, timeline

copies = [copy for copy in traces[0].pipeline if copy.arrived is not None]
timeline(
    [
        Span(f"tile {copy.number}", copy.issued, copy.arrived, "in flight")
        for copy in copies
    ]
    + [
        Span("tensor cores", step, step + 1, str(step - 1), colour=1)
        for step in range(1, len(traces[0].step_flops))
    ],
    "",
    "A ring of three tiles: two are under way while one is multiplied",
    caption="Steps along K of one warp, from the simulator, which gives the order, but "
    "no times.",
)

# %% [markdown]
# ## Rung 5: a warpgroup, TMA and wgmma
#
# **Idea: one instruction for a whole tile.** On rung 4 the threads still compute addresses, start copies, and load
# operands into registers. Hopper has two units that make this unnecessary:
#
# - **TMA**, the tensor memory accelerator: one thread gives the coordinates of a tile. TMA copies the tile to shared
#   memory, in swizzled order, and signals an mbarrier when the bytes have arrived;
# - **wgmma**: a *warpgroup* of four warps multiplies a tile of 64 rows. The tensor cores read both operands directly
#   from shared memory.
#
# The smallest GEMM with both is a loop of three steps: load a tile of each operand, wait for it, multiply.

# %% tags=["hide-input"]
from minllm.kernels.matmul import warpgroup

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

# %% tags=["fold"]
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
# ## Rung 6: warp specialisation
#
# **Idea: give the two halves of the step to different warps.** A **producer** warp only starts TMA loads. A
# **consumer** warpgroup only multiplies. Between them is a ring of four stages with two mbarriers each: *full*, for
# which the consumer waits, and *empty*, for which the producer waits. The two need not run in step.

# %% tags=["hide-input"]
from minllm.kernels.matmul import warp_specialized

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

# %%
ring = rounds(warp_specialized.matmul_warp_specialized)
ahead = max(
    sum(one.issued <= moment < one.done for one in ring)
    for moment in range(ring[-1].done)
)
print(f"up to {ahead} stages hold a tile, or wait for one, at the same time")
assert ahead == warp_specialized.STAGES

# %% tags=["fold"]
show_rounds(ring, "A ring of four stages: copied, full, in use, and copied again")

# %% [markdown]
# The same kernel, event by event, with its barriers ([on its own page](../docs/pipeline.md)):
#
# <!-- interactive: pipeline -->
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
    wgmma.make_consume,
    part="consume",
    folded="The consumer of wgmma",
    notes={
        "while number <": "One tile of outputs after another: the kernel is persistent.",
        "wgmma.multiply(sums": "A step's product is started here; it runs on while the threads go on.",
        "wgmma_wait_group_1": "Let one product be in flight, and no more: those before it are complete.",
        "pipeline.consumer_release(": "So the stage before is free to be filled again, in both blocks of a cluster.",
        "epilogue.store(": "Sums go from registers to shared memory, and out by TMA.",
    },
)

# %%
from minllm.kernels.matmul.wgmma.tiling import WgmmaTiling

with tracing() as traces:
    out = np.empty((64, 256), ml_dtypes.bfloat16)  # [M, N]
    wgmma.matmul_wgmma(tall, wide, out, tiling=WgmmaTiling(1, 64, 3))
assert np.allclose(
    out.astype(np.float64),
    tall.astype(np.float64) @ wide.astype(np.float64).T,
    atol=1.0,
)
print(f"{traces[0].tensor_core_flops:,} operations, {traces[0].total.bytes:,} bytes")

# %% [markdown]
# ## Measured against predicted

# %%
speeds = {row.variant: row.value for row in every_rung}
large = {
    row.variant: row.value
    for row in recorded("matmul", "8192x8192x8192, bfloat16", listed=True)
}
assert speeds["naive"] < speeds["tiled"] < speeds["tensor_core"]
assert speeds["naive"] / counted["naive"].arithmetic_intensity > tb_s  # TB/s in sectors
guess.against(
    flops=flops,
    least_bytes=least_bytes,
    limit="arithmetic",
    tile_tb_s=tflops * (64 + 256) / (64 * 256),
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
assert gain[2048] > 1.1 and 0.9 < gain[4096] < 1 and gain[8192] < 0.8

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
# The next chart shows the rungs under the roof. Each matrix has to come from HBM once, so all have the same arithmetic
# intensity. In brackets: the operations per byte that a rung's blocks request.

# %% tags=["fold"]
from minllm.course import Dot, roofline

# A block of tile_m x tile_n outputs requests 2-byte numbers:
# tile_m tile_n / (tile_m + tile_n) operations per byte.
small, wide_tile = 64 * 256 / (64 + 256), 128 * 256 / (128 + 256)
requested = {
    "naive": 0.5,
    "tiled": 64,
    "vectorized": 64,
    "warpgroup": small,
    "warp_specialized": small,
}
dots = [
    Dot(
        f"{row.variant}: {row.value:.3g} ({requested.get(row.variant, wide_tile):.3g})",
        flops / least_bytes,
        row.value,
    )
    for row in rows
    if row.variant in order
]
assert speeds["wgmma"] > wide_tile * tb_s
roofline(
    dots,
    tb_s,
    tflops,
    "The ladder under the roof",
    caption="FLOP per byte if each matrix is moved once. TFLOP/s "
    f"{rows[0].label}.",
)

# %% [markdown]
# - **naive** requests two bytes per operation. Counted in sectors, it moves more bytes per second than memory can
#   deliver: caches serve most of them, and even they are too slow.
# - **tiled** requests few enough for memory to allow far more than the kernel reaches. It runs on ordinary arithmetic
#   units, and many of its instructions only move numbers.
# - **tensor cores** are the reason why the roof is so high. A block of `tensor_core` or `wgmma` requests one byte per
#   85 operations. If every byte came from HBM, the limit would be some 360 TFLOP/s; most come from L2, so `wgmma` is
#   faster than that.
#
# [The simulator's counts are those of the hardware](../docs/simulator.md), but they do not say where the time goes. For
# that you need a measurement. On a machine with a GPU, this cell makes one:

# %% tags=["fold"]
from minllm.course import has_gpu

if has_gpu():
    from minllm.course import kernel_seconds, machine_line, sets_of_arrays
    from minllm.errors import MinLLMError
    from minllm.kernels.matmul import VARIANTS
    from minllm.ops.cuda_ops import CudaOps

    place = CudaOps()
    sets = [  # enough arrays to overflow the cache
        [
            place.array(rng.standard_normal((M, K)).astype(ml_dtypes.bfloat16))
            for _ in range(2)
        ]
        for _ in range(sets_of_arrays(least_bytes))
    ]
    product = place.empty((M, N), ml_dtypes.bfloat16)
    print(machine_line())
    for variant in order:
        try:
            multiply = VARIANTS[variant]
            calls = [
                lambda stream, a=a, b=b, f=multiply: f(a, b, product, stream=stream)
                for a, b in sets
            ]
            seconds = kernel_seconds(*calls)
            print(f"{variant:12} {flops / seconds / 1e12:8.2f} TFLOP/s")
        except MinLLMError as error:
            print(f"{variant:12} not on this GPU: {error}")
else:
    print("No GPU here: nothing was timed on this machine.")

# %% [markdown]
# ## Exercises

# %% tags=["hide-input"]
from minllm.course import show_exercises

show_exercises(5)

# %% [markdown]
# ## Two detective cases

# %% tags=["hide-input"]
from minllm.course import show_case

show_case("one_customer")

# %% tags=["hide-input"]
show_case("last_tile")

# %% [markdown]
# ## Problems
#
# ??? question "1. A tile of 128 x 256 outputs in bfloat16. How many operations per byte does a block request?"
#     2 · 128 · 256 / (2 · (128 + 256)) = 85.3 FLOP per byte.
#
# ??? question "2. At 800 TFLOP/s, how many TB/s do such tiles need? HBM has 4.2. Where does the rest come from?"
#     800 / 85.3 = 9.4 TB/s. At least 5.2 TB/s come from L2: neighbouring blocks read the same rows.
#
# ??? question "3. A stage of a ring holds 64 x 64 of x and 256 x 64 of weight in bfloat16. How many stages fit in 227 KB?"
#     (64 + 256) · 64 · 2 = 40 KB per stage: five, of which this lesson's kernel uses four, 160 KB.
#
# ??? question "4. 132 SMs, tiles of 128 x 256, a result of 2,048 x 2,048. How many tiles, and what share of the machine is idle?"
#     16 · 8 = 128 tiles for 132 SMs: 3 % idle. A result of 2,304 x 2,048 has 144 tiles and needs two waves: 45 % idle
#     in all. With smaller tiles and a persistent kernel less is idle.
#
# ??? question "5. Prefill of an 8B model at 2,048 tokens takes 45 ms at 4 dollars per hour. What does a million prompt tokens cost, and what would it cost with the naive kernel?"
#     2,048 tokens per 45 ms are 45,500 tokens per second: 2.4 cents per million. The naive kernel is some 700 times
#     slower: 17 dollars.
#
# ## What next, and which measurement says so
#
# Everything above had 2,048 tokens. A decode step of one sequence has one. Then every weight is used once, no tile can
# help, and the limit is the speed of memory:

# %%
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
# - NVIDIA, "CUDA C++ Programming Guide", section "Shared Memory": tiles.
# - V. Volkov, "Better Performance at Lower Occupancy", GTC 2010: many results per thread.
# - NVIDIA, "CUTLASS: Fast Linear Algebra in CUDA C++", 2017: the tile hierarchy.
# - NVIDIA, "PTX ISA", sections "mma", "ldmatrix", "cp.async", "wgmma", "cp.async.bulk.tensor", "mbarrier".
# - S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52 (2009).
