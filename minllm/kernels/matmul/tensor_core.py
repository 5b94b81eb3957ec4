"""GEMM on tensor cores: mma.sync, fed through shared memory by asynchronous copies.

    out[m, n] = sum over k of x[m, k] * weight[n, k]  (+ bias[n])          x and weight bfloat16 or float16, sums in float32

A tensor core multiplies a 16 x 16 by a 16 x 8 matrix in one warp instruction: 4,096 FLOPs, compared with 64 for a warp's fused
multiply-add. Everything else now has to be cheap, and each part of this kernel keeps those instructions fed:

    tiles       A block owns tile_m x tile_n outputs and walks K in steps of tile_k. It reads (tile_m + tile_n) tile_k elements of 2
                bytes for 2 tile_m tile_n tile_k FLOPs: tile_m tile_n / (tile_m + tile_n) FLOPs per byte, 85 for 128 x 256. An
                H200 would need 200 if all that came from HBM (990 TFLOP/s over 4.8 TB/s); most of it comes from L2, because
                neighbouring blocks read the same operands.
    cp.async    copies 16 bytes from global to shared memory, bypassing the registers, without waiting. A ring of `stages` tiles:
                while one is multiplied, stages - 1 are in flight (shared_tiles.py).
    ldmatrix    loads four 8 x 8 blocks from shared memory straight into the registers that mma.sync reads (fragments.py),
                from tiles that are swizzled to avoid bank conflicts.
    registers   A warp multiplies every block of x that it loads with every block of weight: 64 x 64 outputs per warp read 8 x 512
                bytes for 32 instructions.

Threads to data: warps_m x warps_n warps divide the tile, and each keeps its part of out in registers as 16 x 8 blocks: lane l holds
rows l/4 and l/4 + 8 of a block, columns 2 (l mod 4) and the next. Blocks are numbered down groups of 8 tiles of m before n advances, so
that concurrent blocks share operands in L2.

Any M, N and K: a tile that crosses an edge is filled with zeros along k and with any row along m and n: those outputs are not
stored. If rows do not all begin on 16 bytes (K is not a multiple of 8), tiles are copied element by element, correct but slower; if
N is odd or out is float32, outputs are stored one by one instead of in pairs.

Source: PTX ISA, "mma.sync" (fragments of m16n8k16), "ldmatrix", "cp.async"; NVIDIA, "CUTLASS: Efficient GEMM in CUDA" (the ring, the
warps' tiles); the order of blocks is that of the Triton tutorial "Matrix Multiplication".
"""

import functools
from typing import NamedTuple

from numba import cuda, float32, int32, int64, uint32

from minllm import ptx
from minllm.kernels.arguments import ceil_div, rows_begin_on
from minllm.kernels.matmul.arguments import HALF_DTYPES, check_arguments
from minllm.kernels.matmul.fragments import make_multiply_tiles
from minllm.kernels.matmul.output_tiles import make_store_pair, make_tile_order
from minllm.kernels.matmul.shared_tiles import (
    CHUNK,
    WAIT_FOR_ALL_BUT,
    make_copy_tile,
    make_copy_tile_by_elements,
    with_stages_for_gpu,
)
from minllm.runtime.device import HOPPER, capability_here
from minllm.runtime.kernel import check, kernel, launch
from minllm.tiles.warp import WARP

BLOCKS_TO_FILL_A_GPU = 128
tile_at = make_tile_order(8)


class TensorCoreTiling(NamedTuple):
    """How a block divides its work: each warp owns tile_m / warps_m x tile_n / warps_n outputs, both multiples of 16."""

    tile_m: int
    tile_n: int
    tile_k: int
    warps_m: int
    warps_n: int
    stages: int

    @property
    def threads(self) -> int:
        """Threads per block."""
        return self.warps_m * self.warps_n * WARP

    @property
    def shared_bytes(self) -> int:
        """Bytes of the ring of tiles, two per element."""
        return self.stages * (self.tile_m + self.tile_n) * self.tile_k * 2

    def check(self) -> None:
        """Raise KernelArgumentError unless warps, copies and stages divide evenly."""
        check(
            self.tile_m % (16 * self.warps_m) == 0 and self.tile_n % (16 * self.warps_n) == 0 and self.tile_k in (16, 32, 64),
            f"{self}: a warp owns multiples of 16 x 16 outputs, and tile_k is 16, 32 or 64",
        )
        pieces = (self.tile_m * self.tile_k // CHUNK, self.tile_n * self.tile_k // CHUNK)
        even = all(count % self.threads == 0 for count in pieces)
        check(even, f"{self}: {self.threads} threads do not divide tiles of {pieces} 16-byte pieces evenly")
        check(2 <= self.stages <= 5, f"{self}: a ring has 2 to 5 stages")


# Largest first. A ring of 96 KB fits every GPU from compute capability 8.0 on; 8.0 and 9.0 have room for more.
TILINGS = (
    TensorCoreTiling(128, 256, 32, 2, 4, 4),
    TensorCoreTiling(128, 128, 32, 2, 2, 4),
    TensorCoreTiling(64, 128, 64, 2, 2, 3),
    TensorCoreTiling(64, 64, 64, 2, 2, 4),
    TensorCoreTiling(32, 64, 64, 1, 4, 4),
    TensorCoreTiling(16, 64, 64, 1, 4, 4),
)
# {tile: blocks per SM before Hopper}. Without a number ptxas saves registers for more blocks than shared memory holds, and spills.
BLOCKS = {(32, 64): 4}
TILING_BY_ELEMENTS = TensorCoreTiling(64, 64, 32, 2, 2, 2)  # copies through registers leave less room for outputs, and need no ring


@functools.cache
def tensor_core_kernel(tiling: TensorCoreTiling, dtype: str, aligned: bool, paired: bool, blocks: int | None = None):
    """The kernel for x and weight of `dtype`.

    aligned: all rows of x and weight begin on multiples of 16 bytes. paired: out is of `dtype` and its rows begin on multiples of 4 bytes.
    blocks: blocks per SM for which registers must suffice; None leaves the limit to ptxas.
    """
    tiling.check()
    tile_m, tile_n, tile_k, warps_m, warps_n, stages = tiling
    threads = tiling.threads
    warp_rows, warp_columns = tile_m // warps_m, tile_n // warps_n
    blocks_m, blocks_n = warp_rows // 16, warp_columns // 8
    totals = 4 * blocks_m * blocks_n
    x_copies, weight_copies = tile_m * tile_k // CHUNK // threads, tile_n * tile_k // CHUNK // threads
    x_words, stage_words = tile_m * tile_k // 2, (tile_m + tile_n) * tile_k // 2
    make_copy = make_copy_tile if aligned else functools.partial(make_copy_tile_by_elements, dtype=dtype)
    find_x, copy_x = make_copy(tile_m, tile_k, threads)
    find_weight, copy_weight = make_copy(tile_n, tile_k, threads)
    multiply_tiles = make_multiply_tiles(warp_rows, warp_columns, tile_k, dtype)
    store_pair = make_store_pair(dtype if paired else None)
    wait_for_the_oldest = WAIT_FOR_ALL_BUT[stages - 2]

    @kernel(launch_bounds=(threads, blocks) if blocks else threads)
    def matmul_tensor_core_kernel(x, weight, bias, out):
        """x [M, K], weight [N, K], bias [N] or None, out [M, N]; one block per tile, in a one-dimensional grid."""
        ring = cuda.shared.array(0, uint32, alignment=128)  # [stages, tile of x then tile of weight]
        thread = uint32(cuda.threadIdx.x)
        lane, warp = thread & uint32(31), thread >> uint32(5)
        warp_m, warp_n = warp // uint32(warps_n), warp % uint32(warps_n)
        tiles_m, tiles_n = (out.shape[0] + tile_m - 1) // tile_m, (out.shape[1] + tile_n - 1) // tile_n
        tile_row, tile_column = tile_at(int32(cuda.blockIdx.x), int32(tiles_m), int32(tiles_n))
        first_row, first_column = tile_row * tile_m, tile_column * tile_n
        total = cuda.local.array(totals, float32)
        for i in range(totals):
            total[i] = 0.0

        x_starts = cuda.local.array(x_copies, int64)
        weight_starts = cuda.local.array(weight_copies, int64)
        find_x(x, first_row, thread, x_starts)
        find_weight(weight, first_column, thread, weight_starts)
        steps = int32((x.shape[1] + tile_k - 1) // tile_k)
        for step in range(stages - 1):
            if step < steps:  # no copy beyond K, not even an unused one
                copy_x(x, x_starts, step * tile_k, ring, uint32(step * stage_words), thread)
                copy_weight(weight, weight_starts, step * tile_k, ring, uint32(step * stage_words + x_words), thread)
            ptx.cp_async_commit_group()
        step = int32(0)
        while step < steps:
            wait_for_the_oldest()
            cuda.syncthreads()  # this step's copies have arrived for all threads, and all are done with the stage that is filled next
            ahead = int32(step + stages - 1)
            if ahead < steps:
                stage_word = uint32(ahead) % uint32(stages) * uint32(stage_words)
                copy_x(x, x_starts, int32(ahead * tile_k), ring, uint32(stage_word), thread)
                copy_weight(weight, weight_starts, int32(ahead * tile_k), ring, uint32(stage_word + x_words), thread)
            ptx.cp_async_commit_group()  # an empty group if nothing is left to copy: the wait counts groups
            stage_word = uint32(step) % uint32(stages) * uint32(stage_words)
            multiply_tiles(total, ring, uint32(stage_word), uint32(stage_word + x_words), warp_m, warp_n, lane)
            step = int32(step + 1)

        for j in range(blocks_n):
            column = first_column + int32(warp_n * warp_columns + j * 8 + (lane & 3) * 2)
            bias_low, bias_high = float32(0.0), float32(0.0)
            if bias is not None:
                if column < bias.shape[0]:
                    bias_low = float32(bias[column])
                if column + 1 < bias.shape[0]:
                    bias_high = float32(bias[column + 1])
            for i in range(blocks_m):
                row = first_row + int32(warp_m * warp_rows + i * 16 + (lane >> 2))
                at = 4 * (i * blocks_n + j)
                store_pair(out, row, column, total[at] + bias_low, total[at + 1] + bias_high)
                store_pair(out, row + 8, column, total[at + 2] + bias_low, total[at + 3] + bias_high)

    return matmul_tensor_core_kernel


def choose_tiling(m: int, n: int) -> TensorCoreTiling:
    """The largest tiling with enough blocks to occupy every SM (streaming multiprocessor), unless it is mostly padding below row M."""
    candidates = [tiling for tiling in TILINGS if tiling.tile_m < 2 * m] or [TILINGS[-1]]
    for tiling in candidates:
        if ceil_div(m, tiling.tile_m) * ceil_div(n, tiling.tile_n) >= BLOCKS_TO_FILL_A_GPU:
            return tiling
    # Too little work for all SMs: each tile of M reads all weights, so cover M with as few tiles as possible, in the most blocks.
    return min(candidates, key=lambda tiling: (ceil_div(m, tiling.tile_m), tiling.tile_n, tiling.tile_m))


def matmul_tensor_core(x, weight, out, bias=None, stream=None, tiling: TensorCoreTiling | None = None) -> None:
    """Write x @ weight.T + bias into `out`: x [M, K], weight [N, K], bias [N], out [M, N].

    x and weight are float16 or bfloat16; out and bias are of that dtype or float32.

    `tiling` overrides the choice by shape. Raises KernelArgumentError if shapes or dtypes do not fit (see `check_arguments`).
    """
    m, n, _ = check_arguments(x, weight, out, bias, HALF_DTYPES)
    if m == 0 or n == 0:
        return
    aligned = rows_begin_on(16, x, weight)
    paired = out.dtype == x.dtype and rows_begin_on(4, out)
    tiling = TensorCoreTiling(*(tiling or with_stages_for_gpu(choose_tiling(m, n) if aligned else TILING_BY_ELEMENTS)))
    grid = ceil_div(m, tiling.tile_m) * ceil_div(n, tiling.tile_n)
    blocks = BLOCKS.get((tiling.tile_m, tiling.tile_n)) if capability_here() < HOPPER else None
    chosen = tensor_core_kernel(tiling, x.dtype.name, aligned, paired, blocks)
    launch(chosen, grid, tiling.threads, (x, weight, bias, out), stream=stream, shared_bytes=tiling.shared_bytes)
