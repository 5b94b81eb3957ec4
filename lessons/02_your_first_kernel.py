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
# # 2. Your first kernel
#
# A kernel is a function that a GPU runs many times in parallel, each time on different data. Each run is a *thread*.
# In this lesson you write a kernel, run it, stop one of its threads to look inside, break it in the two usual ways, and
# see why two kernels that copy the same bytes can differ in speed by a factor of five.

# %% tags=["fold"]
import numpy as np

from minllm.course import heat_map

threads = np.arange(4 * 32, dtype=float).reshape(4, 32)  # [blocks, threads in a block]
threads[threads >= 100] = np.nan
heat_map(
    threads,
    "4 blocks of 32 threads, and the element that each thread works on",
    row_names=[f"block {number}" for number in range(4)],
    show_values=True,
    caption="A cell is a thread. The guard stops the threads of the empty cells.",
)

# %% [markdown]
# $$\mathrm{out}_i = x_i + r_i \qquad i = \mathrm{block} \cdot \mathrm{threads\ per\ block} + \mathrm{thread}$$
#
# In NumPy this is `x + residual`; a model does it after each half of a layer. Written out, it is a loop over `i`. The
# iterations are independent, so on a GPU every iteration becomes a thread. The loop disappears and its body stays.
# Threads are grouped in blocks, the blocks form the grid, and each thread computes its own `i`:

# %%
from numba import cuda

from minllm.runtime.kernel import kernel, launch


@kernel
def add_kernel(x, residual, out):  # all [n]
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x  # (1)!
    if i < out.size:  # (2)!
        out[i] = x[i] + residual[i]


# %% [markdown]
# 1. Every thread runs this line and gets a different number: `blockIdx` is its block's number, `blockDim` the number of
#    threads per block, `threadIdx` its own number within the block.
# 2. Blocks are always full. If the elements do not fill the last block, its last threads must do nothing.
#
# `@kernel` is Numba's `@cuda.jit` with this package's compiler settings and its simulator: the Python function is
# compiled to machine code for a GPU, or runs as plain Python if there is none.
#
# **What you will be able to do**
#
# - turn a line of NumPy into a kernel, and choose a grid and a block for it;
# - run it without a GPU, step through a thread, and let the simulator find an access out of bounds and a race;
# - tell from a kernel's indices whether its accesses coalesce, and count the wasted bytes if they do not.
#
# You need Python and a little NumPy, no GPU. [Lesson 1](01_what_a_language_model_computes.py) says where such kernels
# stand in a model.
#
# ## Predict

# %% tags=["hide-input"]
from minllm.course import Prediction

guess = Prediction(
    blocks="100 numbers, blocks of 32 threads, one number per thread: how many blocks?",
    idle_threads="How many threads have nothing to do?",
    copied_by_rows="A matrix of 128 x 128 float32 is copied with neighbouring threads along a row. "
    "How many bytes does memory move?",
    copied_by_columns="The same copy with neighbouring threads down a column: how many bytes?",
)
guess.ask()

# %% [markdown]
# ## Run it
#
# A kernel runs on the GPU if its arrays are there, and in the simulator if they are NumPy arrays. One of the two
# classes below makes arrays on the GPU, the other in NumPy. They have the same functions, so the rest of the lesson
# works with either. `launch` takes a kernel, the number of blocks, the number of threads per block, and the arguments.

# %%
from minllm.course import has_gpu
from minllm.kernels.arguments import ceil_div

if has_gpu():
    from minllm.ops.cuda_ops import CudaOps as Place
else:
    from minllm.ops.numpy_ops import NumpyOps as Place
place = Place()

n, block = 100, 32
rng = np.random.default_rng(0)
x, residual = (rng.standard_normal(n).astype(np.float32) for _ in range(2))  # [n]
out = place.empty((n,), np.float32)
grid = ceil_div(n, block)  # 100 / 32, rounded up
launch(add_kernel, grid, block, (place.array(x), place.array(residual), out))

print(f"{grid} blocks of {block} threads; the sums match NumPy's")

# %% tags=["hide"]
assert np.array_equal(place.to_host(out), x + residual)

# %% tags=["hide-input"]
guess.against(blocks=grid, idle_threads=grid * block - n)

# %% [markdown]
# !!! tip "Takeaway"
#     A kernel is the body of a loop. Its index says which iteration a thread does.
#
# ## Write your own
#
# Now you. ReLU replaces every negative number by 0. `minllm exercise` writes a file of 15 lines with a hole of two, and
# `minllm check` runs a series of cases on it. When one fails, it names the wrong element and the likely cause. Neither
# command needs a GPU.

# %% tags=["hide-input"]
from minllm.course import show_exercises

show_exercises("activation.relu")

# %% [markdown]
# ## Stop a thread
#
# A thread in the simulator is plain Python, so Python's debugger works in it. Write `breakpoint()` into a kernel, and
# one thread stops while all others stay where they are. Here a script types the debugger's commands. When you run this
# yourself, write `breakpoint()` instead and type them.

# %%
from minllm.course import typed_debugger

debugger = typed_debugger(
    "p cuda.blockIdx.x, cuda.threadIdx.x, i",
    "p x[i], residual[i]",
    "next",
    "p out.data[96:]",
    "continue",
)


@kernel
def add_and_stop_kernel(x, residual, out):  # all [n]
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i == 98:
        debugger.set_trace()  # breakpoint() in a notebook
    if i < out.size:
        out[i] = x[i] + residual[i]


add_and_stop_kernel.simulate[grid, block](x, residual, np.zeros(n, np.float32))

# %% [markdown]
# `p` prints, `next` runs a line, `continue` lets the thread run on. Thread 2 of block 3 has `i` = 98. Threads 0 and 1
# of its block have already written their elements, and its own element is still 0.

# %% [markdown]
# !!! tip "Takeaway"
#     Every thread runs the same code; in the simulator you can stop any of them.
#
# ## Break it: out of bounds
#
# Leave the guard out. Threads 100 to 127 then access memory beyond the arrays. A GPU does not check: it reads whatever
# is there, and overwrites data of other arrays. The simulator checks every access.

# %%
import textwrap

from minllm.errors import SimulationError
from minllm.sim import detecting


def finding(kernel, grid, block, *arrays):
    """Run a broken kernel in the simulator, with all detectors, and print what is
    found."""
    try:
        with detecting():
            kernel.simulate[grid, block](*arrays)
    except SimulationError as error:
        print(textwrap.fill(str(error), 88))
    else:
        raise AssertionError("nothing was found")


@kernel
def add_without_guard_kernel(x, residual, out):  # all [n]
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    out[i] = x[i] + residual[i]


finding(add_without_guard_kernel, grid, block, x, residual, np.empty(n, np.float32))

# %% [markdown]
# Read such a report from its end: first the line of code, then the thread, then the wrong index.
#
# !!! tip "Takeaway"
#     A GPU does not check indices: guard the last block.
#
# ## Threads that work together, and the race between them
#
# Threads of one block can work together: they share a small, fast memory, and they can wait for each other at a
# barrier. This kernel adds to each number its right neighbour, and to the last number the first:

# %%
from numba import float32


@kernel
def add_next_kernel(x, out):  # both [64]
    tile = cuda.shared.array(64, float32)  # one per block, visible only to its threads
    i = cuda.threadIdx.x
    tile[i] = x[i]
    cuda.syncthreads()  # (1)!
    out[i] = tile[i] + tile[(i + 1) % 64]


numbers = np.arange(64, dtype=np.float32)  # [64]
sums = place.empty((64,), np.float32)
launch(add_next_kernel, 1, 64, (place.array(numbers), sums))
assert np.array_equal(place.to_host(sums), numbers + np.roll(numbers, -1))
print(place.to_host(sums)[[0, 1, 62, 63]])

# %% [markdown]
# 1. A barrier: no thread goes on until all 64 have arrived. Without it a thread could read an element that another
#    has not yet written.
#
# Suppose that a colleague keeps the sum in the tile (the shared array), for use in a later step. Line by line, the
# kernel still looks right.


# %%
@kernel
def add_next_in_place_kernel(x, out):  # both [64]
    tile = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    tile[i] = x[i]
    cuda.syncthreads()
    tile[i] += tile[(i + 1) % 64]
    out[i] = tile[i]


wrong = np.empty(64, np.float32)
add_next_in_place_kernel.simulate[1, 64](numbers, wrong)
print(
    (wrong != numbers + np.roll(numbers, -1)).sum(),
    "of 64 are wrong, in the order in which the simulator runs them",
)
finding(add_next_in_place_kernel, 1, 64, numbers, wrong)

# %% [markdown]
# In a race two threads access one address, at least one of them writes, and nothing orders the two accesses. The
# report names threads 0 and 1, the first pair that it meets. The wrong number is another pair's: thread 0 changes its
# number while the last thread still needs the old one. On a GPU the result depends on which thread comes first: it may
# be right a thousand times. The detector does not wait for the bad order to happen. It checks whether anything rules it
# out.
#
# !!! tip "Takeaway"
#     Threads that share memory need a barrier between writing and reading.
#
# ## Now see the engine's
#
# GELU is the activation in GPT-2's feed-forward. It is applied to each number by itself, like your ReLU:

# %% tags=["hide-input"]
from minllm.course import show_source
from minllm.kernels.activation import gelu

show_source(
    gelu.gelu_kernel,
    notes={
        "functools.cache": "The kernel is made once per formula: the compiler sees a constant, not a choice.",
        "wait_for_predecessors": "For speed alone; skip it until lesson 15.",
        "x, out": "Two dimensions: a row of features per token.",
        "blockIdx.y": "The grid has two dimensions too. x counts tokens, y the pieces of a row.",
        "if i < out.shape[1]": "The guard, as in ours.",
        "formula(float32": "Read as float32, computed, stored in the array's own format.",
    },
)

# %% tags=["hide-input"]
show_source(gelu.gelu_tanh, folded="The formula behind it")

# %% [markdown]
# ## Neighbouring threads should read neighbouring bytes
#
# The hardware runs threads in groups of 32, called warps, with one instruction for all. When a warp reads, its 32
# requests go to memory together, and memory answers in sectors of 32 bytes. If the 32 threads read 32 consecutive
# float32, those are 128 bytes: 4 sectors, and every byte of them is used. This is coalescing. A thread's place in its
# warp, 0 to 31, is its *lane*.
#
# A *trace* counts while the kernel runs in the simulator. It does not measure time. It gives the bytes that the threads
# requested, and the bytes that had to move, in sectors. This is the trace of our addition:

# %%
trace = add_kernel.trace[grid, block](x, residual, np.empty(n, np.float32))
print(trace)

# %% tags=["hide"]
assert trace.total.bytes == 3 * n * 4  # two reads and a write, 4 bytes per element

# %% [markdown]
# Here are two versions of a copy. Only the indices differ.

# %% tags=["hide-input"]
from minllm.course import copies

show_source(copies.copy_by_rows)

# %% tags=["hide-input"]
show_source(
    copies.copy_by_columns,
    notes={
        "row = cuda.blockIdx.y": "Neighbouring threads take neighbouring rows of the same column."
    },
)

# %%
side = 128
matrix = rng.standard_normal((side, side)).astype(np.float32)  # [rows, columns]
traces = {}
for name, copy_kernel in (
    ("by rows", copies.copy_by_rows),
    ("by columns", copies.copy_by_columns),
):
    copied = np.empty_like(matrix)
    traces[name] = copy_kernel.trace[(side, 1), copies.BLOCK](matrix, copied)
    assert np.array_equal(copied, matrix)
    moved, asked = traces[name].total.sector_bytes, traces[name].total.bytes
    print(
        f"{name:10} {asked:>9,} bytes requested, {moved:>9,} bytes in sectors, "
        f"{traces[name].total.sectors_per_request:4.0f} sectors per request"
    )

# %% [markdown]
# Both results are right, and both versions request the same number of bytes. This is the first read of a warp in each:

# %% tags=["fold"]
from minllm.course import accesses

accesses(
    traces["by rows"].example("global", "x"),
    "By rows",
    caption="Counted in the simulator. Coloured cells are read, by the lane named in "
    "them; frames are sectors.",
)

# %% tags=["fold"]
accesses(
    traces["by columns"].example("global", "x"),
    "By columns",
    caption="Each lane gets 4 bytes of the 32 that move for it: seven eighths of the "
    "traffic are wasted.",
    series=1,
)

# %%
by_rows, by_columns = (
    traces[name].total.sector_bytes for name in ("by rows", "by columns")
)

# %% tags=["hide"]
assert by_columns == 8 * by_rows

# %% tags=["hide-input"]
guess.against(copied_by_rows=by_rows, copied_by_columns=by_columns)

# %% [markdown]
# Edit an index and count the sectors ([on its own page](../docs/warp-accesses.md)):
#
# <!-- interactive: warp-accesses -->
#
# !!! tip "Takeaway"
#     A warp should read 32 neighbouring elements: then every byte that moves is used.
#
# ## Measured against predicted
#
# Eight times the bytes should take eight times as long, unless a cache helps. Caches do help: neighbouring blocks need
# other parts of the same sectors, and find some of them in a cache. The chart shows both kernels on an H200. The line
# below it is a third kernel, from the engine, which copies longer rows:

# %% tags=["fold"]
from minllm.course import Bar, bars, load_record, recorded

slow, fast = (recorded("copy", variant=name)[0] for name in ("by columns", "by rows"))
(wide,) = recorded("kv", variant="append", listed=True)
limit = load_record()["ceilings"]["copy_tb_s"]
bars(
    [
        Bar(name, row.value, f"{100 * row.value / limit:.0f} %", colour)
        for colour, (name, row) in enumerate((("by columns", slow), ("by rows", fast)))
    ],
    unit="TB/s",
    title="Two copies: useful bytes per second, read plus written",
    limit=limit,
    limit_name="the driver's own copy:",
    caption=f"16,384 by 16,384 float32; {fast.label}.",
)

# %% tags=["hide-input"]
print(f"by rows, 16 bytes per thread:\n{wide}")

# %% tags=["hide"]
assert wide.value > fast.value and 4 < fast.value / slow.value < 6

# %% [markdown]
# The copy by rows is about five times as fast, not eight. But even this copy stays below the limit, although every byte
# that moves is used. It has too few bytes in flight. A byte is *in flight* from the moment a thread requests it until
# it arrives. Threads that read 4 bytes each and then end do not keep such a memory busy. The third kernel moves 16
# bytes per thread; it comes back in [lesson 8](08_the_kv_cache.py).

# %%
if has_gpu():
    from minllm.course import kernel_seconds, machine_line

    large = place.array(
        rng.standard_normal((8192, 8192), np.float32)
    )  # [rows, columns], 268 MB
    target = place.empty((8192, 8192), np.float32)
    for name, down in (("by rows", False), ("by columns", True)):
        seconds = kernel_seconds(
            lambda stream, down=down: copies.copy(large, target, down, stream)
        )
        print(
            f"{name:10}  {2 * large.nbytes / seconds / 1e12:6.3f} TB/s, "
            f"{machine_line()}"
        )
else:
    print("No GPU here: nothing was timed on this machine.")

# %% [markdown]
# In the kernels of this package, the lanes of a warp read neighbouring elements of a row. Kernels that compute little
# are then as fast as memory, and are close to the slope of the roofline. [Lesson
# 4](04_arithmetic_intensity_and_the_roofline.py) explains this chart; for now, the slope is the limit set by memory.

# %% tags=["fold"]
from minllm.course import Dot, roofline

ceilings = load_record()["ceilings"]
dots = []
for colour, (name, variant, intensity) in enumerate(
    (("activation", "silu_and_multiply", 1.0), ("activation", "gelu_tanh", 2.5))
):
    (row,) = recorded(name, variant=variant)
    dots.append(
        Dot.of_bandwidth(
            f"{variant}: {row.value:.2f} TB/s", intensity, row.value, colour=colour
        )
    )
roofline(
    dots,
    ceilings["copy_tb_s"],
    ceilings["bf16_tflops"],
    "Two kernels that work on each number by itself",
    caption="Operations and bytes as in the kernels' docstrings, bfloat16; "
    f"{row.label}.",
)

# %% [markdown]
# ## Exercises
#
# The engine's own kernels, each with a hole. The first works like your ReLU; the second is a block that walks a row.

# %% tags=["hide-input"]
show_exercises("activation.silu", "embedding.lookup")

# %% [markdown]
# ## A detective case
#
# A whole block adds up a row: half of the threads add the other half's numbers to theirs, then a quarter, and so on.
# This kernel was in use for months.

# %% tags=["hide-input"]
from minllm.course import show_case

show_case("restless_sum")

# %% [markdown]
# ## Problems
#
# ??? question "1. 1,000 numbers, blocks of 256 threads. How many blocks, and how many idle threads?"
#     ceil(1,000 / 256) = 4 blocks with 1,024 threads: 24 are idle.
#
# ??? question "2. A warp reads every second float32 of a row. How many sectors does one request touch, and what share of the traffic is used?"
#     32 threads span 64 numbers, 256 bytes: 8 sectors. Half of each is used.
#
# ??? question "3. On an H200 with 4.2 TB/s, how long does adding two arrays of 100 million float32 take at least?"
#     Two reads and one write of 400 MB: 1.2 GB, so 0.29 ms. The 100 million additions would take 1.5 µs at 67
#     TFLOP/s.
#
# ??? question "4. A job of 10 GPU hours at 4 dollars does nothing but uncoalesced copies. How much of the money is wasted?"
#     Such a copy takes about five times as long as the coalesced one: of the 40 dollars, 32 are wasted.
#
# ??? question "5. 256 threads add up 256 numbers as a tree in shared memory. How many steps, barriers and additions?"
#     8 steps, because 2^8 = 256, with a barrier after each; 128 + 64 + ... + 1 = 255 additions. In the last step one
#     thread works and 255 wait: the tree has few steps, but most threads are idle.
#
# ## What next
#
# The traces on this page show kernels that read several bytes per operation, and the recorded dots are on the slope:
# memory is their limit. Nearly all operations of a language model are in attention and in GEMMs (general matrix
# multiplications). [Lesson 3](03_scaled_dot_product_attention.py) computes attention by hand, writes it as kernels, and
# shows a case in which far more bytes move than are needed.
#
# ## Sources
#
# - NVIDIA, "CUDA C++ Programming Guide", sections on the thread hierarchy and on `__syncthreads()`.
# - NVIDIA, "CUDA C++ Best Practices Guide", "Coalesced Access to Global Memory".
# - D. Hendrycks, K. Gimpel, "Gaussian Error Linear Units", 2016, section 2.
# - M. Harris, "Optimizing Parallel Reduction in CUDA", NVIDIA 2007: the sum, step by step, and its races.
