"""GEMM, third rung: the tiled GEMM with 128-bit loads, and the next tile in flight while this one is multiplied.

    out[m, n] = sum over k of x[m, k] * weight[n, k]  (+ bias[n])

The tiled GEMM spends many instructions per multiply-add: 16 loads of a word from shared memory for 64 multiply-adds, and
one load, one bounds test and one store for each element that it copies. Here each load moves 16 bytes:

    global to registers      a thread reads 4 float32 or 8 half-precision elements along k at once, all of a step before the first is used
    registers to shared      as float32, element by element: the tile has k as its slow axis, so that numbers read along k are
                             scattered down a column
    shared to registers      4 neighbouring rows of x, then 4 of weight: 4 loads for 64 multiply-adds

The loads of the next step's tile are issued before this step's multiplications, and wait in registers until those are done: 64 TILE_K
multiply-adds per thread hide the memory latency. The number of fused multiply-adds is unchanged: 128 per cycle and SM (streaming
multiprocessor), 67 TFLOP/s on an H200, is the limit of this rung and of every one without tensor cores.

Threads to data: 16 x 16 threads own 128 x 128 outputs (8 x 8 threads own 64 x 64 if out is small). Thread (ty, tx) has the rows 4 ty to
4 ty + 3 and those half a tile further down, and the columns likewise from 4 tx on, so that the 128-bit loads of neighbouring threads
are neighbours too.

Rows that do not begin on multiples of 16 bytes are read element by element. Source: V. Volkov, "Better Performance at Lower
Occupancy", GTC 2010; CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory".
"""

import functools

import numpy as np
from numba import cuda, float32

from minllm.kernels.arguments import ceil_div, rows_begin_on
from minllm.kernels.matmul.arguments import check_arguments
from minllm.ptx import load_float32
from minllm.runtime.device import CONSUMER_BLACKWELL, capability_here
from minllm.runtime.kernel import check, kernel, launch

TILES, TILE_K = (128, 64), 16
ALLOWED_TILES = (16, 32, 64, 128)  # a block's threads load whole tiles of these in 16-byte vectors, each thread as many
BLOCKS_TO_FILL_A_GPU = 128
WIDTH, PER_THREAD = 4, 8  # a thread's 8 x 8 outputs are 2 x 2 blocks of 4 x 4


def make_copy(tile: int, dtype: str, whole_vectors: bool):
    """(read_tile, lay_down, elements): a thread's part of a tile to registers, from there to shared memory; its size."""
    vector = 16 // np.dtype(dtype).itemsize if whole_vectors else 1  # elements per load
    vectors, threads = TILE_K // vector, (tile // PER_THREAD) ** 2  # vectors per row of the tile
    columns = min(threads, vectors)  # of vectors in a step, in which those of a thread lie below each other
    steps, rows_apart = vectors // columns, threads // columns
    reads = tile // rows_apart  # loads per thread and step

    @cuda.jit(device=True)
    def read_tile(values, source, first_row, first_k, thread):
        """values = this thread's vectors of source[first_row : +tile, first_k : +TILE_K], zeros beyond the edges."""
        for step in range(steps):
            k = first_k + (step * columns + thread % columns) * vector
            for read in range(reads):
                row, at = first_row + thread // columns + read * rows_apart, (step * reads + read) * vector
                inside = row < source.shape[0] and k < source.shape[1]  # a vector is all inside or all outside
                if whole_vectors:
                    found = load_float32(source, row * source.shape[1] + k if inside else 0)
                    for i in range(vector):
                        values[at + i] = found[i] if inside else float32(0.0)
                else:
                    values[at] = float32(source[row, k]) if inside else float32(0.0)

    @cuda.jit(device=True)
    def lay_down(shared, values, thread):
        """Store the vectors to shared [k, row]."""
        for step in range(steps):
            k = (step * columns + thread % columns) * vector
            for read in range(reads):
                for i in range(vector):
                    shared[k + i, thread // columns + read * rows_apart] = values[(step * reads + read) * vector + i]

    return read_tile, lay_down, steps * reads * vector


@functools.cache
def vectorized_kernel(tile: int, dtype: str, whole_vectors: bool = True):
    """The kernel for `tile` x `tile` outputs per block.

    x and weight are of `dtype`; whole_vectors: their rows begin on multiples of 16 bytes.
    """
    across, half_tile = tile // PER_THREAD, tile // 2
    threads = across * across
    pitch = tile + WIDTH  # words per row of a tile in shared memory: a multiple of 16 bytes, and the next row begins in other banks
    read_tile, lay_down, elements = make_copy(tile, dtype, whole_vectors)

    @cuda.jit(device=True)
    def load_eight(values, shared, k, first):
        """values = shared[k, first : first + 4] and the 4 that are half a tile further on."""
        low, high = load_float32(shared, k * pitch + first), load_float32(shared, k * pitch + first + half_tile)
        for i in range(WIDTH):
            values[i], values[i + WIDTH] = low[i], high[i]

    @kernel(launch_bounds=(threads, 2))
    def matmul_vectorized_kernel(x, weight, bias, out):
        """x [M, K], weight [N, K], bias [N] or None, out [M, N]."""
        x_tile = cuda.shared.array((TILE_K, pitch), float32, 16)  # [k, m]
        weight_tile = cuda.shared.array((TILE_K, pitch), float32, 16)  # [k, n]
        thread = cuda.threadIdx.x
        ty, tx = thread // across, thread % across
        first_row, first_column = cuda.blockIdx.y * tile, cuda.blockIdx.x * tile
        total = cuda.local.array((PER_THREAD, PER_THREAD), float32)
        for i in range(PER_THREAD):
            for j in range(PER_THREAD):
                total[i, j] = 0.0
        x_ahead, weight_ahead = cuda.local.array(elements, float32), cuda.local.array(elements, float32)
        x_values, weight_values = cuda.local.array(PER_THREAD, float32), cuda.local.array(PER_THREAD, float32)
        read_tile(x_ahead, x, first_row, 0, thread)
        read_tile(weight_ahead, weight, first_column, 0, thread)

        first_k = 0
        while first_k < x.shape[1]:
            lay_down(x_tile, x_ahead, thread)
            lay_down(weight_tile, weight_ahead, thread)
            cuda.syncthreads()
            first_k += TILE_K
            if first_k < x.shape[1]:
                read_tile(x_ahead, x, first_row, first_k, thread)
                read_tile(weight_ahead, weight, first_column, first_k, thread)
            for k in range(TILE_K):
                load_eight(x_values, x_tile, k, ty * WIDTH)
                load_eight(weight_values, weight_tile, k, tx * WIDTH)
                for i in range(PER_THREAD):
                    for j in range(PER_THREAD):
                        total[i, j] += x_values[i] * weight_values[j]
            cuda.syncthreads()  # no thread may overwrite a tile that another still reads

        for j in range(PER_THREAD):
            column = first_column + j // WIDTH * half_tile + tx * WIDTH + j % WIDTH
            if column < out.shape[1]:
                offset = float32(0.0)
                if bias is not None:
                    offset = float32(bias[column])
                for i in range(PER_THREAD):
                    row = first_row + i // WIDTH * half_tile + ty * WIDTH + i % WIDTH
                    if row < out.shape[0]:
                        out[row, column] = total[i, j] + offset

    return matmul_vectorized_kernel


def choose_tile(m: int, n: int) -> int:
    """The largest tile with enough blocks to occupy every SM, else the smallest.

    The larger one spills registers from compute capability 12.0 on.
    """
    if capability_here() >= CONSUMER_BLACKWELL:
        return TILES[-1]
    return next((tile for tile in TILES if ceil_div(m, tile) * ceil_div(n, tile) >= BLOCKS_TO_FILL_A_GPU), TILES[-1])


def matmul_vectorized(x, weight, out, bias=None, stream=None, tile: int | None = None) -> None:
    """Write x @ weight.T + bias into `out`: x [M, K], weight [N, K], bias [N], out [M, N].

    x and weight are float32, float16 or bfloat16; out and bias are of that dtype or float32.

    `tile`, one of ALLOWED_TILES, overrides the choice by shape. Raises KernelArgumentError if it is not, or if shapes or dtypes do not
    fit (see `check_arguments`).
    """
    m, n, _ = check_arguments(x, weight, out, bias)
    tile = tile or choose_tile(m, n)
    check(tile in ALLOWED_TILES, f"a tile of {tile} x {tile} outputs: it has to be one of {', '.join(map(str, ALLOWED_TILES))}")
    if m == 0 or n == 0:
        return
    grid, chosen = (ceil_div(n, tile), ceil_div(m, tile)), vectorized_kernel(tile, x.dtype.name, rows_begin_on(16, x, weight))
    launch(chosen, grid, (tile // PER_THREAD) ** 2, (x, weight, bias, out), stream=stream)
