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
# Nearly all arithmetic of a language model is matrix products. There is one obvious way to write such a product, and
# it reaches about a thousandth of what the machine can do. In this lesson you climb from there, one idea a rung:
# reuse, wide loads, tensor cores, and hardware that copies while it computes.
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
# - If every thread computes one number of the result in a plain loop: how many percent of the machine's arithmetic do
#   you expect?

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
# So arithmetic is the limit, if each number is fetched from memory once. That "if" is the whole lesson. Every number
# of $x$ is needed $N$ times, every weight $M$ times. The question on each rung is: from where?
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
# Look at the limit now. A multiprocessor does 128 multiplications with addition a cycle in its ordinary units, which
# makes 67 TFLOP/s for a whole H200, by its data sheet. That is less than a tenth of what its tensor cores do. No kernel
# that multiplies number by number gets beyond it.
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
# ## Rung 5: Hopper's wgmma
#
# **Idea: let the hardware do the rest.** On rung 4 the threads still compute addresses, start copies, and load
# operands into registers. Hopper has a copy engine, TMA, that fetches a whole tile on one thread's word. And its
# tensor cores read both operands from shared memory themselves, for four warps at a time: wgmma. So the threads divide
# the labour. One **producer** thread orders copies. **Consumers** order products. They tell each other through
# barriers in shared memory which tile is full and which is free.

# %% tags=["hide-input"]
from minllm.kernels.matmul.wgmma import wgmma

show_source(
    wgmma.make_produce,
    part="produce",
    notes={
        "stage = pipeline.producer_acquire(": "Wait until the consumers have freed this stage of the ring.",
        "load_x(stage": "TMA loads a tile of x, and below it one of the weight. Nothing passes through this thread's registers.",
        "state = pipeline.advance(state)": "Around the ring: stages are used again, and the state's phase tells the rounds apart.",
    },
)

# %% tags=["hide-input"]
show_source(
    wgmma.make_consume,
    part="consume",
    notes={
        "pipeline.consumer_wait(": "Wait until this stage's tiles have arrived.",
        "wgmma.multiply(sums": "A warpgroup's product is started here; it runs on while the threads go on.",
        "wgmma_wait_group_1": "Let one product be in flight, and no more: those before it are complete.",
        "pipeline.consumer_release(": "So the stage before is free to be filled again.",
        "epilogue.store(": "Sums go from registers to shared memory, and out by TMA.",
    },
)

# %%
from minllm.kernels.matmul.wgmma.tiling import WgmmaTiling

with tracing() as traces:
    large_x, large_weight = (rng.standard_normal((64, 512)).astype(ml_dtypes.bfloat16) for _ in range(2))  # K = 512
    large_out = np.empty((64, 64), ml_dtypes.bfloat16)
    wgmma.matmul_wgmma(large_x, large_weight, large_out, tiling=WgmmaTiling(1, 64, 3))
assert np.allclose(
    large_out.astype(np.float64), large_x.astype(np.float64) @ large_weight.astype(np.float64).T, atol=1.0
)
print(f"{traces[0].tensor_core_flops:,} operations, {traces[0].total.bytes:,} bytes")

# %% tags=["fold"]
spans = []
for one in traces[0].stages:
    spans += [
        Span(f"stage {one.stage}", one.issued, one.arrived, "copy"),
        Span(f"stage {one.stage}", one.arrived, one.used, "full", colour=2),
        Span(f"stage {one.stage}", one.used, one.done, "used", colour=1),
    ]
timeline(
    spans,
    "",
    "A ring of three stages: copied, full, in use, and free again",
    caption="Order of events in one block, from the simulator. It has no clock: widths are not times.",
)

# %% [markdown]
# ## The staircase
#
# What is it worth? Every rung that was recorded on an H200, for the product of the prediction:

# %% tags=["fold"]
from minllm.course import recorded

rows = recorded("matmul", "2048x2048x2048, bfloat16")
order = ["naive", "tiled", "vectorized", "tensor_core", "wgmma"]
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
    caption=f"The axis is logarithmic. cuBLAS is NVIDIA's own library. All {rows[0].label}.",
)

# %%
speeds = {row.variant: row.value for row in rows}
assert speeds["naive"] < speeds["tiled"] < speeds["tensor_core"]
assert speeds["naive"] / counted["naive"].arithmetic_intensity > tb_s  # TB/s in sectors
guess.against(
    flops=flops,
    least_bytes=least_bytes,
    limit="arithmetic",
    percent_of_the_limit=100 * speeds["naive"] / tflops,
)

# %% [markdown]
# ## Measured against predicted
#
# The operations for each byte that a rung's blocks ask for, and what it reached. Where no cache helps, a kernel cannot
# be above the slope; and if it is far below, something else than memory holds it up.

# %% tags=["fold"]
from minllm.course import Dot, roofline

# Operations for each byte that a block asks for: tile_m tile_n / (tile_m + tile_n) with 2-byte numbers.
intensities = {"naive": 0.5, "tiled": 64, "vectorized": 64, "tensor_core": 128 * 256 / (128 + 256)}
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
# - **tensor cores** are what makes the roof so high. On ordinary units it would be less than a tenth of that. From here
#   on a block asks for a byte for every 85 operations. If memory had to answer all of it, some 360 TFLOP/s would be the
#   end. It need not: blocks that run at the same time want the same tiles, and the second-level cache has them. So a
#   dot of these rungs may stand above the slope.
# - What else keeps them from the flat roof cannot be read off this chart. The suspect is waiting, for a copy, a
#   barrier, an address. Rung 5 is built to wait less.
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
# Everything above had 2,048 tokens. When a model writes, it has one. The product is then a matrix times a vector:
# every weight is used once, no tile can help, and the limit is the speed of memory.

# %%
for row in recorded("matmul", "1x28672x4096") + recorded("matmul", "1x4096x14336"):
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
