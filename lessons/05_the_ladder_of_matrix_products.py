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
# Nearly all arithmetic of a language model is matrix products (GEMM, general matrix multiply). There is one obvious way
# to write such a product, and it reaches about a thousandth of what the machine can do. In this lesson you climb from
# there, one idea a rung: reuse, wide loads, tensor cores, TMA, and warps with different roles.
#
# **What you will be able to do**
#
# - say how many bytes a tile saves, and which tile a machine needs;
# - read the counts of the simulator: sectors, bank conflicts, operations a byte;
# - explain each rung by the limit that it removes, and find the limit of the next.
#
# You need [lesson 2](02_your_first_kernel.py) for kernels, shared memory and coalescing, and [lesson
# 4](04_arithmetic_intensity_and_the_roofline.py) for the roofline.
#
# ## Predict
#
# The product of two matrices of 2,048 by 2,048 numbers in bfloat16 (2 bytes each), on an H200.
#
# - How many floating-point operations are that? How many bytes, if each matrix is moved once?
# - Is memory the limit, or arithmetic?
# - If every thread computes one number of the result in a plain loop: what percentage of the machine's arithmetic
#   do you expect?

# %%
from minllm.course import Prediction

guess = Prediction(
    flops=17e9,
    least_bytes=25e6,
    limit="arithmetic",
    percent_of_the_limit=10,
)
guess

# %% [markdown]
# ## Where a model multiplies matrices
#
# A linear layer holds a matrix of weights, a row for each output feature. Every token's vector is multiplied by all
# of them:
#
# $$\mathrm{out}_{m,n} = \sum_k x_{m,k}\, w_{n,k} \qquad x\ [M, K], \quad w\ [N, K], \quad \mathrm{out}\ [M, N]$$
#
# $M$ is the number of tokens, $K$ the features that go in, $N$ the features that come out. A multiplication and an
# addition for each of $M N K$: $2MNK$ operations. In NumPy it is a line:

# %% tags=["hide-input"]
from minllm.course import show_source
from minllm.kernels.matmul import reference

show_source(reference.matmul_reference)

# %% [markdown]
# What share of a model's work is that? Here are the parts of a layer of an 8-billion-parameter model that reads a
# prompt of 2,048 tokens.

# %% tags=["fold"]
from minllm.costs import prefill_stages
from minllm.course import Bar, bars
from minllm.models.shapes import named_config

stages = prefill_stages(named_config("llama-3.1-8b"), tokens=2048)
total = sum(stage.flops + stage.other_flops for stage in stages)
bars(
    [
        Bar(stage.name, 100 * (stage.flops + stage.other_flops) / total, colour=int("projection" not in stage.name))
        for stage in stages
        if (stage.flops + stage.other_flops) / total > 0.0005
    ],
    unit="%",
    title="Where the operations of a prompt are",
    caption="Llama-3.1-8B, 2,048 tokens; from the model's shape, by minllm.costs. First colour: products with weights.",
)

# %%
products = sum(stage.flops for stage in stages if "projection" in stage.name)
print(f"{products / total:.0%} of all operations are products with weights")
assert products / total > 0.9

# %% [markdown]
# ## The limit
#
# For our square matrices:

# %%
from minllm.course import load_record

M = N = K = 2048
flops = 2 * M * N * K
least_bytes = (M * K + N * K + M * N) * 2

ceilings = load_record()["ceilings"]  # of one H200, measured with the driver's copy and with cuBLAS
tb_s, tflops = ceilings["copy_tb_s"], ceilings["bf16_tflops"]
memory_us, arithmetic_us = least_bytes / tb_s / 1e6, flops / tflops / 1e6
print(f"{flops / 1e9:.1f} GFLOP, {least_bytes / 1e6:.1f} MB, {flops / least_bytes:.0f} FLOP a byte")
print(f"H200: {memory_us:.1f} µs to move the bytes, {arithmetic_us:.1f} µs to do the operations")
assert arithmetic_us > 3 * memory_us

# %% [markdown]
# So arithmetic is the limit, if each number is fetched from HBM, the GPU's memory, once. That "if" is the whole lesson.
# Every number of $x$ is needed $N$ times, every weight $M$ times. The question on each rung is: from where?
#
# ## Rung 1: naive
#
# One thread for each number of the result. It walks a row of $x$ and a row of the weight.

# %% tags=["hide-input"]
from minllm.kernels.matmul import naive

show_source(
    naive.matmul_naive_kernel,
    notes={
        "column = cuda.blockIdx.x": "Threads beside each other have neighbouring columns of out, and so neighbouring "
        "*rows* of weight.",
        "row < out.shape[0]": "The grid is rounded up: keep out of what is beyond the edge.",
        "total += ": "Two operations, for two numbers that are fetched.",
    },
    docstring=False,
)

# %% [markdown]
# We run every rung in the simulator, for 64 tokens, 64 features out and 32 in, which is small enough to wait for, and
# have it count.

# %%
import ml_dtypes
import numpy as np

from minllm.sim import tracing

rng = np.random.default_rng(0)
size, depth = 64, 32
x, weight = (rng.standard_normal((size, depth)).astype(ml_dtypes.bfloat16) for _ in range(2))  # [M, K], [N, K]
expected = x.astype(np.float64) @ weight.astype(np.float64).T  # [M, N]
counted = {}


def count(name, matmul, **options):
    """Run a rung in the simulator, compare its result, and print what it moved."""
    out = np.empty((size, size), ml_dtypes.bfloat16)  # [M, N]
    with tracing() as traces:
        matmul(x, weight, out, **options)
    assert np.allclose(out.astype(np.float64), expected, atol=0.01 * np.abs(expected).max())
    trace = counted[name] = traces[0]
    read = trace.total.bytes - out.nbytes
    requests = sum(array.read.requests for array in trace.arrays.values())
    print(f"{name}: {read:,} bytes asked for in {requests:,} requests, {trace.total_flops / read:.1f} FLOP a byte")
    print(f"  sectors a request: {trace.arrays['weight'].read.sectors_per_request:.0f} of weight,", end=" ")
    print(f"{trace.arrays['x'].read.sectors_per_request:.0f} of x; bank conflicts: {trace.bank_conflicts}")


count("naive", naive.matmul_naive)

# %%
trace = counted["naive"]
assert trace.arrays["x"].read.bytes == trace.arrays["weight"].read.bytes == 2 * size**2 * depth
assert trace.arrays["weight"].read.sectors_per_request == 16

# %% [markdown]
# Half an operation for each byte asked for: two numbers of 2 bytes are fetched for a multiplication and an addition.
# And a warp's request for weights touches 16 sectors of 32 bytes, to get 2 bytes from each. The rest of each sector is
# needed in the next steps, so caches help a lot. But the caches are asked for $2MNK$ numbers, and that is too much for
# them as well.
#
# ## Rung 2: tiled
#
# **Idea: fetch once, use often.** A block of threads takes a tile of the result, $64 \times 64$ say. For that it needs
# 64 rows of $x$ and 64 rows of weight. All its threads together copy a piece of these rows into shared memory, wait
# until it is there, and multiply from there. Each number that was fetched is used 64 times.
#
# ```mermaid
# flowchart LR
#     A["x, weight<br/>global memory"] -- "once<br/>a tile" --> B["two tiles<br/>shared memory"]
#     B -- "16 numbers,<br/>64 products" --> C["8 × 8 sums<br/>registers"]
# ```
#
# A tile of $t \times t$ results moves $2t$ numbers for $2t^2$ operations: $t / \mathrm{itemsize}$ operations a byte. The
# same trick is then played again between shared memory and registers: each thread owns a small block of results, so
# that a number from shared memory serves several products.

# %% tags=["hide-input"]
from minllm.kernels.matmul import tiled

show_source(
    tiled.tiled_kernel,
    notes={
        "padded = tile + 1": "One word too many in each row of the tile: see below.",
        "copy_tile(x_tile, x": "All threads together copy a piece of both matrices.",
        "cuda.syncthreads()": "Wait: the tile is complete only when all have copied.",
        "x_values[i] = x_tile": "From shared memory into registers, once.",
        "total[i, j] +=": "per_thread × per_thread products from 2 × per_thread numbers.",
        "no thread may overwrite": "And wait again. Forget this one, and a quick thread spoils the tile of a slow one.",
    },
)

# %%
count("tiled", tiled.matmul_tiled, tile=(64, 16, 8))

# %%
trace = counted["tiled"]
assert trace.arrays["x"].read.bytes == 2 * size * depth  # each number once: the tile is as large as out here
assert int(trace.total_flops / (2 * trace.arrays["x"].read.bytes)) == 64 // 2

# %% [markdown]
# 64 times fewer bytes, and the sectors of a request are full. The engine's large tile has $t = 128$: 64 operations a
# byte.
#
# **Bank conflicts.** There are some now. Shared memory has 32 banks, word $w$ lies in bank $w \bmod 32$, and a bank
# serves one word at a time. The tile lies with $k$ as its slow axis, so a thread that copies along $k$ goes down a
# column. If a row of the tile had 64 words, a whole column would lie in one bank. The row has 65, and the column
# spreads. Here is what a warp's 32 lanes ask for when they store, 16 of them along one row of $x$ and 16 along the
# next:

# %% tags=["fold"]
from minllm.course import heat_map


def turns(pitch):
    """[turns, banks]: 1 where a bank works. Lanes store k = 0 to 15 of two rows; from k to k + 1 are `pitch` words."""
    banks = [(k * pitch + row) % 32 for row in range(2) for k in range(16)]
    waiting = [banks.count(bank) for bank in range(32)]
    return np.array([[1.0 if count > turn else np.nan for count in waiting] for turn in range(max(waiting))])


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
    caption="One word of padding a row. Not perfect: lane k of the second row meets lane k + 1 of the first.",
)

# %%
stores = [line for line in trace.shared if line.kind == "write"]
for line in stores:
    print(f"{line.array}: {line.requests} stores take {line.turns} turns, {line.worst}-way conflicts")
assert all(line.worst == len(turns(65)) for line in stores)

# %% [markdown]
# The simulator counts the same. An exercise for the eye: with steps of 32 along $k$, a warp stores a single row, and
# the conflicts are gone.

# %%
count("tiled, steps of 32", tiled.matmul_tiled, tile=(64, 32, 4))
assert counted["tiled, steps of 32"].bank_conflicts == 0

# %% [markdown]
# ## Rung 3: vectorized
#
# **Idea: fewer, wider instructions.** The tiled kernel issues a load for every number that it copies. A thread can
# load 16 bytes at once, 8 numbers in bfloat16, and read 4 words of shared memory at once. And it can ask for the next
# tile *before* it multiplies this one, so that the wait for memory passes while it works.

# %% tags=["hide-input"]
from minllm.kernels.matmul import vectorized

show_source(
    vectorized.vectorized_kernel,
    notes={
        "def load_eight": "Two loads of 16 bytes instead of eight of 4.",
        "read_tile(x_ahead, x, first_row, 0": "The first tile, into registers.",
        "lay_down(x_tile, x_ahead": "From registers into shared memory.",
        "read_tile(x_ahead, x, first_row, first_k": "The next tile is on its way from here on...",
        "total[i, j] +=": "...while this one is multiplied.",
    },
)

# %%
count("vectorized", vectorized.matmul_vectorized, tile=64)

# %%
loads = {name: sum(array.read.requests for array in counted[name].arrays.values()) for name in counted}
words = {name: sum(line.requests for line in counted[name].shared if line.kind == "read") for name in counted}
print(f"requests to global memory: tiled {loads['tiled']}, vectorized {loads['vectorized']}")
print(f"requests to shared memory: tiled {words['tiled']}, vectorized {words['vectorized']}")
assert loads["tiled"] == 8 * loads["vectorized"] and words["tiled"] == 4 * words["vectorized"]

# %% [markdown]
# The bytes are the same, the requests an eighth and a quarter.

# %% [markdown]
# ## Rung 4: tensor cores
#
# Look at the limit now. A streaming multiprocessor (SM) does 128 multiplications with addition a cycle in its ordinary
# units, which makes 67 TFLOP/s for a whole H200, by its data sheet. That is less than a tenth of what its tensor cores
# do. No kernel that multiplies number by number gets beyond it.
#
# **Idea: one instruction for a whole small product.** A tensor core multiplies a $16 \times 16$ by a $16 \times 8$
# matrix in one instruction of a warp. These are 4,096 operations, where the warp's ordinary instruction makes 64.
# The three matrices are spread over the registers of the 32 lanes, in an order that the hardware dictates. A
# special load, `ldmatrix`, puts them there.

# %% tags=["hide-input"]
from minllm.kernels.matmul import fragments

show_source(
    fragments.make_multiply_step,
    notes={
        "a = cuda.local.array": "This lane's part of the operands: A is of x, B of weight.",
        "place_of_chunk(row, chunk)": "Chunks of 16 bytes lie in shared memory in a shuffled order, the swizzle, so that "
        "the eight rows that one load wants lie in eight different groups of banks. It does without padding.",
        "multiply(total": "The instruction: 4,096 operations.",
    },
)

# %% [markdown]
# Such an instruction eats its operands so fast that the copies become the problem. They are made asynchronous: `cp.async`
# starts a copy from global to shared memory and goes on. A ring of tiles is kept, and while one is multiplied, the
# next ones are on their way. The simulator shows it:

# %%
from minllm.kernels.matmul import tensor_core

tiling = tensor_core.TensorCoreTiling(64, 64, 32, 2, 2, stages=3)
count("tensor_core", tensor_core.matmul_tensor_core, tiling=tiling)
assert counted["tensor_core"].bank_conflicts == 0

long_x, long_weight = (rng.standard_normal((64, 256)).astype(ml_dtypes.bfloat16) for _ in range(2))  # K = 256
with tracing() as traces:
    tensor_core.matmul_tensor_core(long_x, long_weight, np.empty((64, 64), ml_dtypes.bfloat16), tiling=tiling)

# %% tags=["fold"]
from minllm.course import Span, timeline

copies = [copy for copy in traces[0].pipeline if copy.arrived is not None]
timeline(
    [Span(f"tile {copy.number}", copy.issued, copy.arrived, "on its way") for copy in copies]
    + [
        Span("tensor cores", step, step + 1, str(step - 1), colour=1)
        for step in range(1, len(traces[0].step_flops))
    ],
    "",
    "A ring of three tiles: two are under way while one is multiplied",
    caption="Steps along K of one warp, from the simulator, which knows an order but no times.",
)

# %% [markdown]
# ## Rung 5: a warpgroup, TMA and wgmma
#
# **Idea: one instruction for a whole tile.** On rung 4 the threads still compute addresses, start copies, and load
# operands into registers. Hopper has two units that do without that:
#
# - **TMA**, the tensor memory accelerator: one thread names a tile by its coordinates, and TMA copies all of it to
#   shared memory, in swizzled order, and reports to an mbarrier when the bytes are there;
# - **wgmma**: a *warpgroup*, four warps, multiplies a tile of 64 rows. The tensor cores read both operands from
#   shared memory themselves.
#
# The smallest GEMM with both is a loop of three steps: load a tile of each operand, wait for it, multiply.

# %% tags=["hide-input"]
from minllm.kernels.matmul import warpgroup

show_source(
    warpgroup.warpgroup_kernel,
    part="matmul_warpgroup_kernel",
    notes={
        "ptx.mbarrier_arrive_expect_tx": "One thread tells the mbarrier how many bytes to expect, and loads.",
        "ptx.mbarrier_wait_parity": "All threads wait. Nothing else happens in this block until the tiles are there.",
        "wgmma.multiply(sums": "64 × 256 outputs, 64 steps of K: two million operations, in four instructions.",
        "cuda.syncthreads()  #": "And TMA waits here, until the tensor cores are done.",
        "store_sums(": "The epilogue, as on rung 4: each thread stores its sums in pairs.",
    },
)

# %%
tall, wide = (rng.standard_normal((rows, 512)).astype(ml_dtypes.bfloat16) for rows in (64, 256))  # K = 512


def rounds(matmul):
    """Run a rung in the simulator for one tile of out, check it, and return when each tile of x and weight did what."""
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
    caption = "Order of events in one block, from the simulator. It has no clock: widths are not times."
    return timeline(spans, "", title, caption=caption)


alone = rounds(warpgroup.matmul_warpgroup)
assert all(later.issued > one.done for one, later in zip(alone, alone[1:], strict=False))

# %% tags=["fold"]
show_rounds(alone, "One stage: a tile is copied, then multiplied, then the next is copied")

# %% [markdown]
# While the tile is copied, this block's tensor cores are idle, and the other way round. Only other blocks on the same
# SM can fill the gaps; registers leave room for three.
#
# ## Rung 6: warp specialisation
#
# **Idea: give the two halves of the step to different warps.** A **producer** warp does nothing but start TMA loads. A
# **consumer** warpgroup does nothing but multiply. Between them lies a ring of four stages, and each stage has two
# mbarriers: *full*, for which the consumer waits, and *empty*, for which the producer waits. Neither has to keep step
# with the other; this division of labour is called warp specialisation.

# %% tags=["hide-input"]
from minllm.kernels.matmul import warp_specialized

show_source(
    warp_specialized.make_produce,
    part="produce",
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
    notes={
        "pipeline.consumer_wait(": "Wait until this stage's tiles have arrived.",
        "wgmma.wait(sums": "Until the tensor cores have read the tiles...",
        "pipeline.consumer_release(": "...which the producer may then overwrite.",
    },
)

# %%
ring = rounds(warp_specialized.matmul_warp_specialized)
ahead = max(sum(one.issued <= moment < one.done for one in ring) for moment in range(ring[-1].done))
print(f"up to {ahead} stages hold a tile, or wait for one, at the same time")
assert ahead == warp_specialized.STAGES

# %% tags=["fold"]
show_rounds(ring, "A ring of four stages: copied, full, in use, and copied again")

# %% [markdown]
# Predict before you read on. A tile of $64 \times 256$ outputs asks for a byte per 51 operations, which you saw above
# in the counts. Rung 4 with its $128 \times 256$ asks for one per 85.
#
# - At the speed of the best product measured, how many TB/s of tiles would rung 5 or 6 load? HBM delivers about 4.
# - What percentage of that speed do you expect of each of the two rungs?

# %%
hopper_guess = Prediction(tile_tb_s=5, warpgroup_percent=20, warp_specialized_percent=60)
hopper_guess.against(tile_tb_s=tflops * (64 + 256) / (64 * 256))

# %% [markdown]
# Nearly four times what HBM delivers. Blocks that run at the same time share tiles, so most of it comes from L2, the
# cache between the SMs and HBM. But that cache has a limit, too. So rung 6 may hide the latency of every load and still
# miss the roof: the staircase below says what was measured.
#
# ## Rung 7: everything at once
#
# **Idea: fewer bytes, and no pauses between tiles.** The engine's kernel keeps rung 6's division of labour and adds
# four things:
#
# - **more reuse**: two consumers share a tile of weight, 128 rows of $x$ per block; two blocks form a *cluster* and
#   load half of that tile each, for both (multicast);
# - **one product in flight**: a consumer starts a step's wgmma *before* it waits for that of the step before, so the
#   tensor cores have work while a stage is released;
# - **a persistent kernel**: as many blocks as SMs, each with one tile of outputs after another. The producer loads the
#   next tile's first steps while the consumers still store this one;
# - **an epilogue by TMA**: sums go through shared memory, and leave in whole rows while the next tile is multiplied.
#   Bias, residual or SwiGLU's gate are applied on the way.

# %% tags=["hide-input"]
from minllm.kernels.matmul.wgmma import wgmma

show_source(
    wgmma.make_consume,
    part="consume",
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
assert np.allclose(out.astype(np.float64), tall.astype(np.float64) @ wide.astype(np.float64).T, atol=1.0)
print(f"{traces[0].tensor_core_flops:,} operations, {traces[0].total.bytes:,} bytes")

# %% [markdown]
# ## The staircase
#
# What is it worth? The rungs that were recorded together on an H200, for the product of the prediction. Kernels
# change between recordings, so rungs of another commit are not drawn beside these; they are listed further down.

# %% tags=["fold"]
from minllm.course import comparable, recorded

every_rung = recorded("matmul", "2048x2048x2048, bfloat16", listed=True)
rows = list(comparable(*(row for row in every_rung if row.commit == every_rung[0].commit)))
order = ["naive", "tiled", "vectorized", "tensor_core", "warpgroup", "warp_specialized", "wgmma"]
rows.sort(key=lambda row: order.index(row.variant) if row.variant in order else len(order))
steps = [Bar(row.variant, row.value, f"{100 * row.value / tflops:.2g} %") for row in rows]
peer = max((row for row in rows if row.peer_value), key=lambda row: row.peer_value)
bars(
    [*steps, Bar(peer.peer, peer.peer_value, f"{100 * peer.peer_value / tflops:.2g} %", colour=1)],
    unit="TFLOP/s",
    title="2,048 × 2,048 × 2,048 in bfloat16",
    limit=tflops,
    limit_name="best product measured:",
    log=True,
    caption=f"The axis is logarithmic. cuBLAS is NVIDIA's own library. {rows[0].label}.",
)

# %%
speeds = {row.variant: row.value for row in every_rung}
print("no recorded row yet:", ", ".join(name for name in order if name not in speeds) or "none is missing")
assert speeds["naive"] < speeds["tiled"] < speeds["tensor_core"]
assert speeds["naive"] / counted["naive"].arithmetic_intensity > tb_s  # TB/s in sectors
guess.against(
    flops=flops,
    least_bytes=least_bytes,
    limit="arithmetic",
    percent_of_the_limit=100 * speeds["naive"] / tflops,
)

# %%
hopper_rungs = [name for name in ("warpgroup", "warp_specialized") if name in speeds]
percentages = {f"{name}_percent": 100 * speeds[name] / tflops for name in hopper_rungs}
hopper_guess.against(**percentages) if percentages else "rungs 5 and 6: nothing to compare yet"

# %% tags=["fold"]
for row in recorded("matmul", listed=True):
    if row.variant in hopper_rungs:
        print(row)

# %% [markdown]
# At this size every rung pays. Did you expect that of larger matrices, too? At $4096^3$ rung 6 is no faster than rung
# 5, and at $8192^3$ it is slower. A producer hides the latency of loads, but its ring of four stages takes 160 KB, so
# an SM holds one block. Of rung 5 it holds three: while one waits or stores, another multiplies. Warp specialisation
# alone is not the gain. It is what makes rung 7's gains possible: with the producer ahead, a block needs no neighbour
# to fill its pauses, and its shared memory can go to larger tiles. (This explains the figures;
# it has not been profiled.)
#
# A rung without a recorded row has no bar above, and cannot be compared. On a GPU of compute capability 9.0 a cell
# below measures all of them.
#
# ## Measured against predicted
#
# The operations for each byte that a rung's blocks ask for, and what it reached. Where no cache helps, a kernel cannot
# be above the slope; and if it is far below, something else than memory holds it up.

# %% tags=["fold"]
from minllm.course import Dot, roofline

# Operations for each byte that a block asks for: tile_m tile_n / (tile_m + tile_n) with 2-byte numbers.
small = 64 * 256 / (64 + 256)
intensities = {"naive": 0.5, "tiled": 64, "vectorized": 64, "warpgroup": small, "warp_specialized": small}
dots = [
    Dot(f"{row.variant}: {row.value:.3g}", intensities.get(row.variant, 128 * 256 / (128 + 256)), row.value)
    for row in rows
]
roofline(
    dots,
    tb_s,
    tflops,
    "The ladder under the roof",
    caption=f"Operations a byte as blocks ask for them, before caches. TFLOP/s {rows[0].label}.",
)

# %% [markdown]
# - **naive** asks for two bytes an operation. Counted in sectors of 32 bytes, it moves more a second than memory could
#   deliver. So caches answer most of it, and even they do not keep up.
# - **tiled** has moved to the right, where memory would allow far more than it reaches. It runs on ordinary arithmetic
#   units, and spends many of its instructions on moving numbers.
# - **tensor cores** are what makes the roof so high. On ordinary units it would be less than a tenth of that. A block
#   of `tensor_core` or `wgmma` asks for a byte per 85 operations. If HBM had to answer all of it, some 360 TFLOP/s
#   would be the end. It need not: blocks that run at the same time want the same tiles, and L2 has them. So a dot of
#   these rungs may stand above the slope.
# - What else keeps them from the flat roof cannot be read off this chart. The suspect is waiting, for a copy, a
#   barrier, an address. Rungs 5 to 7 are built to wait less.
#
# Note what the simulator can and cannot say. It counted bytes, sectors and conflicts, and
# [its counts are those of the hardware](../docs/simulator.md). But it did not know which of them would cost time. For that
# you need a measurement. On a machine with a GPU, this cell makes one:

# %%
from minllm.course import has_gpu

if has_gpu():
    from minllm.course import kernel_seconds, machine_line, sets_of_arrays
    from minllm.errors import MinLLMError
    from minllm.kernels.matmul import VARIANTS
    from minllm.ops.cuda_ops import CudaOps

    place = CudaOps()
    sets = [  # so many that a cache does not hold them
        [place.array(rng.standard_normal((M, K)).astype(ml_dtypes.bfloat16)) for _ in range(2)]
        for _ in range(sets_of_arrays(least_bytes))
    ]
    product = place.empty((M, N), ml_dtypes.bfloat16)
    print(machine_line())
    for variant in order:
        try:
            multiply = VARIANTS[variant]
            calls = [lambda stream, a=a, b=b, f=multiply: f(a, b, product, stream=stream) for a, b in sets]
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
# ## What next, and which measurement says so
#
# Everything above had 2,048 tokens. When a model writes, it has one. The product is then a matrix times a vector
# (GEMV): every weight is used once, no tile can help, and the limit is the speed of memory.

# %%
for row in recorded("matmul", "1x28672x4096", listed=True) + recorded("matmul", "1x4096x14336", listed=True):
    print(row)

# %% [markdown]
# That is [lesson 9](09_decode_attention.py). Between one token and thousands lies the batch:
# [flat.py](../minllm/kernels/matmul/flat/flat.py) multiplies up to 256 rows with tensor cores, and means
# to do that at the speed of memory, too.
#
# Before it, look at what stands between the products. Norms, rotations and activations do next to no arithmetic. But
# the faster the products become, the larger is the share of time that these small
# kernels take: [lesson 6](06_norms_rope_swiglu_fusion.py).
#
# ## Sources
#
# - NVIDIA, "CUDA C++ Programming Guide", section "Shared Memory": tiles.
# - V. Volkov, "Better Performance at Lower Occupancy", GTC 2010: many results a thread.
# - NVIDIA, "CUTLASS: Fast Linear Algebra in CUDA C++", 2017: the hierarchy of tiles.
# - NVIDIA, "PTX ISA", sections "mma", "ldmatrix", "cp.async", "wgmma", "cp.async.bulk.tensor", "mbarrier".
# - S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52 (2009).
