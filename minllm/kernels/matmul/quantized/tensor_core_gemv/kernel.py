"""The kernel: one row of x times a quantised weight, on tensor cores, with the norm before it and what follows it.

A tile is 16 rows of weight, eight pairs (outputs.py). `splits` warps of a block divide K: a warp takes every `splits`-th step of 64 bytes
of codes per row, so that the warps of a tile load neighbouring bytes. It keeps `unroll` steps in flight in registers: a step is loaded as
soon as the step that lay in its registers is multiplied, across the end of a tile. The sums of the warps meet in shared memory, and one
warp of a tile writes its outputs while the others multiply the next one.

The first codes are loaded before x is written (dependent launch), and while a block prepares its own copy of x (activations.py).
"""

import functools
from typing import NamedTuple

from numba import cuda, float32, int32, uint8, uint32

from minllm import ptx
from minllm.kernels.arguments import ceil_div
from minllm.kernels.matmul.quantized.tensor_core_gemv.operand import Operand, Rows
from minllm.kernels.matmul.quantized.tensor_core_gemv.outputs import PAIRS, Outputs
from minllm.runtime.kernel import kernel
from minllm.tiles.unrolled import unrolled
from minllm.tiles.warp import ALL_LANES, WARP

TILE_ROWS = 2 * PAIRS


class TensorCoreGemvTiling(NamedTuple):
    """A block of `warps`, of which `splits` share a tile; `unroll` steps in flight per warp; `blocks` per SM fit, and `waves` of them are
    launched, at most."""

    warps: int
    splits: int
    unroll: int
    blocks: int
    waves: int

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.warps * WARP

    @property
    def tiles(self) -> int:
        """Tiles that a block computes at a time."""
        return self.warps // self.splits

    def padded_steps(self, steps: int) -> int:
        """Steps of K, so many that each warp of a tile has a multiple of `unroll`."""
        return ceil_div(steps, self.splits * self.unroll) * self.splits * self.unroll


@functools.cache
def tensor_core_gemv_kernel(tiling: TensorCoreGemvTiling, operand: Operand, outputs: Outputs):
    """The kernel for weights of an Operand, whose K and dtype of x it fixes."""
    splits, tiles_of_block, unroll, words_of_a_step, table_bytes = (
        tiling.splits, tiling.tiles, tiling.unroll, operand.words, operand.table_bytes
    )  # fmt: skip
    chunks, last_step, sum_type = tiling.padded_steps(operand.steps) // (splits * unroll), operand.steps - 1, operand.sum_type
    held, sums_of_block, two_buffers = unroll * words_of_a_step, tiling.warps * TILE_ROWS, 2 * tiling.warps * TILE_ROWS
    load, multiply, rows_of = operand.load, operand.multiply, outputs.rows_of

    @cuda.jit(device=True, forceinline=True)
    def rows_of_tile(tile, n):
        """The lane's Rows of a tile."""
        low, high = rows_of(tile * PAIRS + (int32(cuda.threadIdx.x) >> 2 & 7), n)
        return Rows(uint32(low), uint32(high))

    @cuda.jit(device=True, forceinline=True)
    def load_step(u, weight, rows, kept, first, words):
        load(weight, rows, kept, min(first + u * splits, int32(last_step)), words, u * words_of_a_step)

    @cuda.jit(device=True, forceinline=True)
    def multiply_and_load(u, memory, table, kept, words, first, total, goes_on, weight, next_rows, next_kept, next_first):
        """The products of the u-th step in flight, and the loads of the step that takes its place."""
        multiply(memory, table, kept, words, u * words_of_a_step, first + u * splits, total)
        if goes_on:
            load_step(u, weight, next_rows, next_kept, next_first, words)

    load_steps, multiply_steps = unrolled(load_step, unroll), unrolled(multiply_and_load, unroll)

    @cuda.jit(device=True, forceinline=True)
    def add_splits(sums, first):
        """In lane i < 8 (the sum of row i of a tile over its warps, of row i + 8)."""
        lane, value = int32(cuda.threadIdx.x) & (WARP - 1), float32(0)
        for split in range(splits):
            value += sums[first + split * TILE_ROWS + (lane & (TILE_ROWS - 1))]
        return value, cuda.shfl_xor_sync(ALL_LANES, value, PAIRS)

    @kernel(launch_bounds=(tiling.threads, tiling.blocks), dependent_launch=True)
    def tensor_core_gemv_kernel(x, norm, weight, arrays, n, pairs, epsilon):
        """x [1, K], norm [K] or None, weight [n, K]: the arrays of the operand, arrays: those of the outputs, pairs: of rows of weight."""
        ptx.griddepcontrol_launch_dependents()
        memory = cuda.shared.array(0, uint32, 128)
        table = cuda.shared.array(table_bytes, uint8, 128)  # of a format without a table the memory above: nothing touches it
        sums = cuda.shared.array(two_buffers, float32)
        lane, warp = int32(cuda.threadIdx.x) & (WARP - 1), int32(cuda.threadIdx.x) >> 5
        tile_of_warp, split = warp // splits, warp % splits
        words, total = cuda.local.array(held, uint32), cuda.local.array(4, sum_type)
        stride, tiles = int32(cuda.gridDim.x) * tiles_of_block, int32(pairs + PAIRS - 1) // PAIRS
        first_tile, buffer = int32(cuda.blockIdx.x) * tiles_of_block, int32(0)
        rows = rows_of_tile(first_tile + tile_of_warp, n)
        kept = operand.begin(weight, rows)
        load_steps(weight, rows, kept, split, words)
        operand.fill_table(table, weight)
        x_scale = operand.prepare(x, norm, epsilon, memory)
        cuda.syncthreads()
        while first_tile < tiles:
            following = first_tile + stride
            next_rows = rows_of_tile(following + tile_of_warp, n)
            next_kept = operand.begin(weight, next_rows)
            pair = (first_tile + tile_of_warp) * PAIRS + (lane & (PAIRS - 1))
            prepared = outputs.prepare(arrays, pair)
            for i in range(4):
                total[i] = 0
            for chunk in range(chunks - 1):
                first = chunk * unroll * splits + split
                multiply_steps(memory, table, kept, words, first, total, True, weight, rows, kept, first + unroll * splits)
            first = (chunks - 1) * unroll * splits + split
            multiply_steps(memory, table, kept, words, first, total, following < tiles, weight, next_rows, next_kept, split)
            low, high = operand.finish(weight, rows, total, x_scale)
            if lane & 3 == 0:
                sums[buffer + warp * TILE_ROWS + (lane >> 2)] = low
                sums[buffer + warp * TILE_ROWS + (lane >> 2) + PAIRS] = high
            cuda.syncthreads()
            if split == 0:
                low, high = add_splits(sums, buffer + warp * TILE_ROWS)
                if lane < PAIRS and pair < pairs:
                    outputs.write(arrays, prepared, pair, low, high)
            first_tile, buffer, rows, kept = following, sums_of_block - buffer, next_rows, next_kept

    return tensor_core_gemv_kernel
