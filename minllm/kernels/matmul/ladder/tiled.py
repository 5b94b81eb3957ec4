"""GEMM, second rung: tiles in shared memory, a small tile of outputs in every thread's registers.

    out[m, n] = sum over k of x[m, k] * weight[n, k]  (+ bias[n])

A block owns TILE x TILE outputs and walks K in steps of TILE_K: it copies TILE x TILE_K elements of x and of weight into shared memory
(converted to float32), waits, and multiplies them from there. Every element loaded from memory now serves TILE outputs instead of one:
the traffic falls from 2 M N K elements to 2 M N K / TILE, and the arithmetic intensity rises from 1/itemsize to
TILE/itemsize FLOPs per byte (32 for float32 tiles of 128, above the 14 that an H200 needs).

Shared memory would be the next limit: a fused multiply-add needs two operands, and an SM (streaming multiprocessor) reads 32 words of
shared memory per cycle but multiplies 128 pairs. So each thread computes PER_THREAD x PER_THREAD outputs: it reads 2 PER_THREAD words for
PER_THREAD squared multiply-adds, and with 8 the two limits meet.

Threads to data: (TILE / PER_THREAD) squared threads, `across` = TILE / PER_THREAD of them per row. Thread (ty, tx) owns the outputs (ty + i
across, tx + j across): strided, not adjacent, so that the lanes of a warp read neighbouring words of the weight tile (no bank conflicts)
and the same words of x (a broadcast). The tiles lie in shared memory with k as the slow axis and one word of padding per row: the copy
writes a column at a time, and padding moves each element of a column into another bank.

Source: CUDA C++ Programming Guide, "Shared Memory" (tiles); V. Volkov, "Better Performance at Lower Occupancy", GTC 2010 (registers).
"""

import functools

from numba import cuda, float32

from minllm.kernels.arguments import ceil_div
from minllm.kernels.matmul.arguments import check_arguments
from minllm.runtime.kernel import kernel, launch

# (tile, tile_k, per_thread): the large tile reads memory and shared memory half as often, the small one makes four times as many blocks.
TILES = ((128, 16, 8), (64, 32, 4))
BLOCKS_TO_FILL_A_GPU = 128


@functools.cache
def tiled_kernel(tile: int, tile_k: int, per_thread: int):
    """The kernel for `tile` x `tile` outputs per block, steps of `tile_k`, and `per_thread` x `per_thread` outputs per thread."""
    across = tile // per_thread
    threads = across * across
    padded = tile + 1
    elements = tile * tile_k

    @cuda.jit(device=True)
    def copy_tile(shared, source, first_row, first_k, thread):
        """source[first_row : +tile, first_k : +tile_k] -> shared[tile_k, tile], zeros beyond the edges; threads read along k."""
        element = thread
        while element < elements:
            row = element // tile_k
            k = element % tile_k
            value = float32(0.0)
            if first_row + row < source.shape[0] and first_k + k < source.shape[1]:
                value = float32(source[first_row + row, first_k + k])
            shared[k, row] = value
            element += threads

    @kernel(launch_bounds=threads)
    def matmul_tiled_kernel(x, weight, bias, out):
        """x [M, K], weight [N, K], bias [N] or None, out [M, N]."""
        x_tile = cuda.shared.array((tile_k, padded), float32)  # [k, m]
        weight_tile = cuda.shared.array((tile_k, padded), float32)  # [k, n]
        thread = cuda.threadIdx.x
        ty = thread // across
        tx = thread % across
        first_row = cuda.blockIdx.y * tile
        first_column = cuda.blockIdx.x * tile
        total = cuda.local.array((per_thread, per_thread), float32)
        for i in range(per_thread):
            for j in range(per_thread):
                total[i, j] = 0.0

        first_k = 0
        while first_k < x.shape[1]:
            copy_tile(x_tile, x, first_row, first_k, thread)
            copy_tile(weight_tile, weight, first_column, first_k, thread)
            cuda.syncthreads()
            # exercise: matmul.tiled
            for k in range(tile_k):
                x_values = cuda.local.array(per_thread, float32)
                for i in range(per_thread):
                    x_values[i] = x_tile[k, ty + i * across]
                for j in range(per_thread):
                    weight_value = weight_tile[k, tx + j * across]
                    for i in range(per_thread):
                        total[i, j] += x_values[i] * weight_value
            # end exercise
            cuda.syncthreads()  # no thread may overwrite a tile that another still reads
            first_k += tile_k

        for j in range(per_thread):
            column = first_column + tx + j * across
            if column < out.shape[1]:
                offset = float32(0.0)
                if bias is not None:
                    offset = float32(bias[column])
                for i in range(per_thread):
                    row = first_row + ty + i * across
                    if row < out.shape[0]:
                        out[row, column] = total[i, j] + offset

    return matmul_tiled_kernel


def choose_tile(m: int, n: int) -> tuple[int, int, int]:
    """The largest tile with enough blocks to occupy every SM, else the smallest."""
    for tile, tile_k, per_thread in TILES:
        if ceil_div(m, tile) * ceil_div(n, tile) >= BLOCKS_TO_FILL_A_GPU:
            return tile, tile_k, per_thread
    return TILES[-1]


def matmul_tiled(x, weight, out, bias=None, stream=None, tile: tuple[int, int, int] | None = None) -> None:
    """Write x @ weight.T + bias into `out`: x [M, K], weight [N, K], bias [N], out [M, N].

    x and weight are float32, float16 or bfloat16; out and bias are of that dtype or float32.

    `tile` overrides (tile, tile_k, per_thread). Raises KernelArgumentError if shapes or dtypes do not fit (see `check_arguments`).
    """
    m, n, _ = check_arguments(x, weight, out, bias)
    if m == 0 or n == 0:
        return
    size, tile_k, per_thread = tile or choose_tile(m, n)
    grid = (ceil_div(n, size), ceil_div(m, size))
    block = (size // per_thread) ** 2
    launch(tiled_kernel(size, tile_k, per_thread), grid, block, (x, weight, bias, out), stream=stream)
