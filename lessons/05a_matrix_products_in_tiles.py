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
# # 5a. Matrix products: tiles and tensor cores
#
# Nearly all arithmetic of a language model is GEMM, general matrix multiply. The obvious way to write one reaches about
# a thousandth of the machine's speed. In this lesson you climb four rungs from there, with one idea: load a number
# once, and use it often. [Lesson 5b](05b_matrix_products_on_hopper.py) climbs the other three.
#
# This is the whole ladder, measured on an H200. The first rungs hardly show:

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
    caption=f"cuBLAS is NVIDIA's own library; {rows[0].label}.",
)

# %% [markdown]
# $$\mathrm{out}_{m,n} = \sum_k x_{m,k}\, w_{n,k} \qquad x\ [M, K], \quad w\ [N, K], \quad \mathrm{out}\ [M, N]$$
#
# $M$ is the number of tokens, $K$ the number of input features, $N$ the number of output features: $2MNK$ operations.
#
# **What you will be able to do**
#
# - say how many bytes a tile saves, and how large a tile a machine needs;
# - read the counts of the simulator: sectors, bank conflicts, operations per byte;
# - explain each rung by the limit that it removes.
#
# You need [lesson 2](02_your_first_kernel.py) for kernels, shared memory and coalescing, and [lesson
# 4](04_arithmetic_intensity_and_the_roofline.py) for the roofline.
#
# ## Predict
#
# Two matrices of 2,048 by 2,048 numbers in bfloat16 (2 bytes each) are multiplied on an H200. A rung of this lesson
# gives each block a tile of 64 by 64 outputs.

# %% tags=["hide-input"]
from minllm.course import Prediction

guess = Prediction(
    flops="How many floating-point operations is that?",
    least_bytes="How many bytes, if each matrix is moved once?",
    limit=("What is the limit then?", "memory", "arithmetic"),
    tile_intensity="How many operations per byte does a block with a tile of 64 x 64 request?",
    tensor_core_gain="How much faster is the rung with tensor cores than the one before it?",
)
guess.ask()

# %% [markdown]
# ## Rung 1: naive
#
# One thread per number of the result: each reads a row of $x$ and a row of weight, and adds up their products. Write it;
# the engine can run with it.

# %% tags=["hide-input"]
from minllm.course import show_exercises

show_exercises("matmul.naive")

# %% [markdown]
# Now see the engine's, the lowest bar of the chart:

# %% tags=["hide-input"]
from minllm.course import show_source
from minllm.kernels.matmul.ladder import naive

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

# %% tags=["hide"]
assert arithmetic_us > 3 * memory_us

# %% [markdown]
# So arithmetic is the limit, if each number is loaded only once from HBM, the GPU's memory. This lesson is about that
# "if". Every number of $x$ is needed $N$ times, every weight $M$ times. The rungs differ in where these repeated loads
# come from.
#
# !!! tip "Takeaway"
#     A large GEMM is limited by arithmetic, provided that each number is loaded once.
#
# ## What rung 1 moves
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
# !!! tip "Takeaway"
#     Without reuse every operation costs bytes: half an operation per byte, whatever the machine can compute.
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
# In the chart below a cell is a tile. The block of one tile of out walks along its rows of $x$ and of weight, one pair of
# tiles per step:

# %% tags=["fold"]
from minllm.course import heat_map

steps, tiles = range(4), range(5)
picture = np.full((9, 9), np.nan)  # weight above, x on the left, out in the corner
for step in steps:
    picture[step, 6] = picture[6, step] = step + 1
picture[6, 6] = 5
heat_map(
    picture,
    "What one block reads and writes, step by step",
    row_names=[
        *[f"weight, step {k + 1}" for k in steps],
        *[f"x and out, rows {64 * i} to {64 * i + 63}" for i in tiles],
    ],
    column_names=[
        *[f"x, step {k + 1}" for k in steps],
        *[f"columns {64 * i} to {64 * i + 63}" for i in tiles],
    ],
    show_values=True,
    caption="In steps 1 to 4 a tile of x is multiplied by a tile of weight. In 5 the "
    "sums, a tile of out, are stored.",
)

# %% [markdown]
# A tile of $t \times t$ results moves $2t$ numbers for $2t^2$ operations: $t / \mathrm{itemsize}$ operations per byte.
# The same idea works with registers: each thread computes a small block of results, so it uses each number from shared
# memory several times.

# %% tags=["hide-input"]
from minllm.kernels.matmul.ladder import tiled

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

# %% tags=["hide"]
assert all(line.worst == len(turns(65)) for line in stores)

# %% [markdown]
# The simulator counts the same. With steps of 32 along $k$ a warp stores a single row, without conflicts:

# %%
count("tiled, steps of 32", tiled.matmul_tiled, tile=(64, 32, 4))

# %% tags=["hide"]
assert counted["tiled, steps of 32"].bank_conflicts == 0

# %% [markdown]
# <!-- end aside -->
#
# !!! tip "Takeaway"
#     A tile of $t \times t$ outputs makes $t$ operations of every number loaded. Doubling $t$ halves the bytes.
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

# %% tags=["hide"]
assert (
    loads["tiled"] == 8 * loads["vectorized"]
    and words["tiled"] == 4 * words["vectorized"]
)

# %% [markdown]
# The bytes are the same. The requests fall to an eighth and a quarter.
#
# !!! tip "Takeaway"
#     Once bytes are few, instructions are the limit: move 16 bytes with each.
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

# %% tags=["hide"]
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
# !!! tip "Takeaway"
#     The tensor cores are ten times faster than the ordinary units. From here on the task is to feed them.
#
# ## Measured against predicted

# %% tags=["hide-input"]
speeds = {row.variant: row.value for row in every_rung}
guess.against(
    flops=flops,
    least_bytes=least_bytes,
    limit="arithmetic",
    tile_intensity=64 / 2,
    tensor_core_gain=speeds["tensor_core"] / speeds["vectorized"],
)

# %% tags=["hide"]
assert speeds["naive"] < speeds["tiled"] < speeds["tensor_core"]
assert speeds["naive"] / counted["naive"].arithmetic_intensity > tb_s  # TB/s in sectors

# %% [markdown]
# The next chart shows the rungs under the roof. Each matrix has to come from HBM once, so all have the same arithmetic
# intensity. In brackets: the operations per byte that a rung's blocks request.

# %% tags=["fold"]
from minllm.course import Dot, roofline

# A block of tile_m x tile_n outputs requests 2-byte numbers:
# tile_m tile_n / (tile_m + tile_n) operations per byte.
requested = {
    "naive": 0.5,
    "tiled": 64,
    "vectorized": 64,
    "tensor_core": 128 * 256 / (128 + 256),
}
dots = [
    Dot(
        f"{row.variant}: {row.value:.3g} ({requested[row.variant]:.3g})",
        flops / least_bytes,
        row.value,
    )
    for row in rows
    if row.variant in requested
]
roofline(
    dots,
    tb_s,
    tflops,
    "Four rungs under the roof",
    caption=f"FLOP per byte if each matrix is moved once. TFLOP/s {rows[0].label}.",
)

# %% [markdown]
# - **naive** requests two bytes per operation. Counted in sectors, it moves more bytes per second than memory can
#   deliver: caches serve most of them, and even they are too slow.
# - **tiled** requests few enough for memory to allow far more than the kernel reaches. It runs on ordinary arithmetic
#   units, and many of its instructions only move numbers.
# - **tensor cores** are the reason why the roof is so high.
#
# [The simulator's counts match the hardware's](../docs/simulator.md), but they do not say where the time goes. For
# that you need a measurement. On a machine with a GPU, this cell makes one:

# %% tags=["fold"]
from minllm.course import has_gpu

if has_gpu():
    from minllm.course import machine_line, product_rates

    print(machine_line())
    for variant, rate in product_rates(requested, M, N, K).items():
        print(f"{variant:12} {rate}")
else:
    print("No GPU here: nothing was timed on this machine.")

# %% [markdown]
# ## Exercises
#
# All later rungs keep what the second one adds. In it a thread computes several outputs from two tiles in shared memory:

# %% tags=["hide-input"]
show_exercises("matmul.tiled")

# %% [markdown]
# ## A detective case

# %% tags=["hide-input"]
from minllm.course import show_case

show_case("one_customer")

# %% [markdown]
# ## Problems
#
# ??? question "1. A tile of 128 x 256 outputs in bfloat16. How many operations per byte does a block request?"
#     2 · 128 · 256 / (2 · (128 + 256)) = 85.3 FLOP per byte.
#
# ??? question "2. Shared memory holds 227 KB per SM. What is the largest square tile whose sums would fit there in float32?"
#     227 · 1,024 / 4 = 58,112 numbers: 241 × 241. Sums are kept in registers, which are faster, and of which an SM has
#     256 KB.
#
# ??? question "3. 67 TFLOP/s for ordinary units. How long does the GEMM of this lesson take on them at least, and on tensor cores with 819?"
#     17.2 GFLOP: 256 µs, and 21 µs.
#
# ??? question "4. Rows of a shared tile have 66 words. Into how many banks does a column of 32 words fall?"
#     66 mod 32 = 2: every second bank, 16 of them, two words each. An odd row length uses all 32.
#
# ??? question "5. Prefill of an 8B model at 2,048 tokens takes 45 ms at 4 dollars per hour. What does a million prompt tokens cost, and what would it cost with the naive kernel?"
#     2,048 tokens per 45 ms are 45,500 tokens per second: 2.4 cents per million. The naive kernel is some 700 times
#     slower: 17 dollars.
#
# ## What next
#
# In the chart the rung with tensor cores reaches less than the roof by far, although its tiles request one byte per 85
# operations: threads still compute addresses, start copies and load operands. [Lesson
# 5b](05b_matrix_products_on_hopper.py) hands these to the hardware.
#
# ## Sources
#
# - NVIDIA, "CUDA C++ Programming Guide", section "Shared Memory": tiles.
# - V. Volkov, "Better Performance at Lower Occupancy", GTC 2010: many results per thread.
# - NVIDIA, "PTX ISA", sections "mma", "ldmatrix", "cp.async".
# - S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52 (2009).
