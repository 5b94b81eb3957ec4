"""GEMM on Hopper, first rung: one warpgroup, one tile of each operand in shared memory, nothing overlaps.

    out[m, n] = sum over k of x[m, k] * weight[n, k]  (+ bias[n])          x and weight bfloat16 or float16, sums in float32

Work: 2 M N K FLOPs. A block computes 64 x 256 outputs in steps of 64 along K, and each step has three parts, one after the other:

    load        One thread starts two TMA loads, x [64, 64] and weight [256, 64]. TMA computes the addresses, swizzles the tiles on their
                way to shared memory, and counts the bytes that have arrived at an mbarrier. No operand passes through registers.
    wait        All threads wait for the mbarrier.
    multiply    wgmma: the four warps together multiply the tiles on the SM's four tensor cores, which read both operands from shared
                memory. The sums stay in registers, 128 per thread.

Bytes: a step reads (64 + 256) * 64 elements of 2 bytes for 2 * 64 * 256 * 64 FLOPs: 51 FLOPs per byte, mostly from L2. A block's tensor
cores are idle while its tiles are on their way; only the two other blocks of the same SM can fill that time. warp_specialized.py loads
tiles ahead instead.

Threads to data: 128 threads per block, one block per tile of out, tiles of n beside each other in the grid. tiles/wgmma.py says which
sums a thread holds. Sums are initialised with the bias.

Any M, N and K: TMA fills what lies beyond an edge with zeros, and outputs beyond an edge are not stored. tensor_core takes over if rows of
x or weight do not begin on multiples of 16 bytes, which TMA requires, or if the GPU has no wgmma.

Source: PTX ISA, "wgmma.mma_async", "cp.async.bulk.tensor", "mbarrier".
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

from numba import cuda, float32, int32, uint8, uint32

from minllm import ptx
from minllm.kernels.arguments import ceil_div, rows_begin_on
from minllm.kernels.matmul import arguments
from minllm.kernels.matmul.arguments import HALF_DTYPES, check_arguments, has_wgmma
from minllm.kernels.matmul.output_tiles import make_store_pair
from minllm.runtime.kernel import check, kernel, launch
from minllm.runtime.tensor_map import tensor_map
from minllm.tiles import tma
from minllm.tiles.pipeline import BARRIER_BYTES, Stage
from minllm.tiles.shared import ALIGNMENT, SharedTile, first_tile_address
from minllm.tiles.warpgroup import THREADS
from minllm.tiles.wgmma import make_wgmma, sum_column, sum_row

X, WEIGHT = SharedTile(64, 64), SharedTile(256, 64)  # tiles per step
STAGE_BYTES = X.bytes + WEIGHT.bytes
BLOCKS_PER_SM = 3  # with 128 sums per thread, registers allow no more
SHARED_BYTES = STAGE_BYTES + BARRIER_BYTES + ALIGNMENT


class Sums(NamedTuple):
    """Device functions for a warpgroup's sums [64, 256] in registers."""

    begin: Callable  # begin(sums, bias, first_column, thread): each sum begins as the bias of its column, or 0
    store: Callable  # store(sums, out, first_row, first_column, thread): stores the sums that lie inside out


def make_sums(registers: int, dtype: str, paired: bool) -> Sums:
    """The Sums for `registers` sums per thread; if `paired`, two neighbours of a row are stored as one word."""
    store_pair = make_store_pair(dtype if paired else None)

    @cuda.jit(device=True, forceinline=True)
    def begin(sums, bias, first_column, thread):
        for i in range(registers):
            sums[i] = float32(0.0)
            if bias is not None:  # a column beyond the edge takes the last bias: it is not stored
                sums[i] = float32(bias[min(first_column + sum_column(i, thread), bias.shape[0] - 1)])

    @cuda.jit(device=True, forceinline=True)
    def store(sums, out, first_row, first_column, thread):
        for i in range(0, registers, 2):
            store_pair(out, first_row + sum_row(i, thread), first_column + sum_column(i, thread), sums[i], sums[i + 1])

    return Sums(begin, store)


@functools.cache
def warpgroup_kernel(dtype: str, paired: bool):
    """The kernel for x and weight of `dtype`; paired: out is of `dtype` and its rows begin on multiples of 4 bytes."""
    wgmma = make_wgmma(WEIGHT, dtype, left=X)
    registers, x_bytes, stage_bytes, rows, columns, depth = wgmma.registers, X.bytes, STAGE_BYTES, X.rows, WEIGHT.rows, X.columns
    begin_sums, store_sums = make_sums(registers, dtype, paired)

    @kernel(launch_bounds=(THREADS, BLOCKS_PER_SM))
    def matmul_warpgroup_kernel(x_map, weight_map, bias, out, k_steps):
        """x [M, K] in boxes [64, 64], weight [N, K] in boxes [256, 64], bias [N] or None, out [M, N]."""
        row, column, thread = int32(cuda.blockIdx.y * rows), int32(cuda.blockIdx.x * columns), int32(cuda.threadIdx.x)
        tiles = first_tile_address(cuda.shared.array(0, uint8, 1024))
        stage = Stage(tiles, uint32(tiles + stage_bytes))  # x's tile, weight's tile, and their mbarrier
        if thread == 0:
            ptx.mbarrier_init(stage.full, 1)
            ptx.fence_mbarrier_init()
        cuda.syncthreads()
        sums = cuda.local.array(registers, float32)  # this thread's part of [64, 256]
        begin_sums(sums, bias, column, thread)
        for step in range(k_steps):
            if thread == 0:
                ptx.mbarrier_arrive_expect_tx(stage.full, stage_bytes)
                tma.load_2d(stage, 0, x_map, int32(step * depth), row)
                tma.load_2d(stage, x_bytes, weight_map, int32(step * depth), column)
            ptx.mbarrier_wait_parity(stage.full, uint32(step & 1))  # the parity of its phase alternates between 0 and 1
            wgmma.multiply(sums, wgmma.left(stage.tiles), wgmma.right(stage.tiles + x_bytes), 1)
            wgmma.wait(sums)
            cuda.syncthreads()  # all warps are done with the tiles, which thread 0 overwrites next
        store_sums(sums, out, row, column, thread)

    return matmul_warpgroup_kernel


def why_not(x, weight) -> str | None:
    """Why this rung and warp_specialized cannot serve x and weight; None if they can."""
    return arguments.why_not(x, weight) if has_wgmma(x) else "wgmma needs a GPU of compute capability 9.0"


def launch_tiles(make_kernel, threads: int, shared_bytes: int, x, weight, out, bias, stream) -> None:
    """Check the arguments and launch make_kernel(dtype, paired) with one block per tile of out."""
    m, n, k = check_arguments(x, weight, out, bias, HALF_DTYPES)
    if m == 0 or n == 0:
        return
    check(why_not(x, weight) is None, f"x is {x.dtype} {list(x.shape)}; {why_not(x, weight)}")
    chosen = make_kernel(x.dtype.name, out.dtype == x.dtype and rows_begin_on(4, out))
    x_map, weight_map = tensor_map(x, (X.rows, X.columns)), tensor_map(weight, (WEIGHT.rows, WEIGHT.columns))
    grid = ceil_div(n, WEIGHT.rows), ceil_div(m, X.rows)
    launch(chosen, grid, threads, (x_map, weight_map, bias, out, ceil_div(k, X.columns)), stream, shared_bytes)


def matmul_warpgroup(x, weight, out, bias=None, stream=None) -> None:
    """Write x @ weight.T + bias into `out`: x [M, K], weight [N, K], bias [N], out [M, N].

    x and weight are float16 or bfloat16; out and bias are of that dtype or float32. Raises KernelArgumentError if shapes or dtypes do not
    fit (see `check_arguments`).
    """
    launch_tiles(warpgroup_kernel, THREADS, SHARED_BYTES, x, weight, out, bias, stream)
