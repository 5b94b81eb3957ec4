"""The kernel: one row of x times a quantised weight, on tensor cores, with the norm before it and what follows it.

A tile is 16 rows of weight, eight pairs (outputs.py). `splits` warps of a block divide K: a warp takes every `splits`-th step of 64 bytes
of codes per row, so that the warps of a tile load neighbouring bytes. The sums of the warps meet in shared memory, and one warp of a tile
writes its outputs while the others multiply the next one.

By Little's law HBM delivers at its full rate only if some 32 KB per SM are on their way at every moment. Registers would be too few for
that beside those of a second kernel. So each lane copies its own 16 bytes of codes by cp.async into its own places of a ring in shared
memory, `depth` steps ahead, also across the ends of tiles, and nobody but the lane waits for them: there is no barrier in the loop. A block
takes less than half of an SM, so that the next kernel's blocks are there early and fill their rings (dependent launch) while this
kernel ends, and while they wait for x and prepare it (activations.py).
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, float32, int32, uint8, uint32

from minllm import ptx
from minllm.kernels.arguments import ceil_div
from minllm.kernels.matmul.quantized.tensor_core_gemv.operand import LANE_BYTES, ROW_BYTES, Operand, Rows
from minllm.kernels.matmul.quantized.tensor_core_gemv.outputs import PAIRS, Outputs
from minllm.kernels.vector import load_words
from minllm.runtime.kernel import kernel
from minllm.tiles.unrolled import unrolled
from minllm.tiles.warp import ALL_LANES, WARP

TILE_ROWS = 2 * PAIRS
CODE_WORDS = 2 * LANE_BYTES // 4  # a lane's codes of a step: four words of row low, four of row high
SLOT_WORDS = WARP * CODE_WORDS  # a warp's codes of a step in the ring: all lanes' of row low, then of row high
HALF_SLOT_BYTES = SLOT_WORDS * 4 // 2
MOST_DEPTH = 8
WAIT_GROUP = [getattr(ptx, f"cp_async_wait_group_{i}") for i in range(MOST_DEPTH)]


class TensorCoreGemvTiling(NamedTuple):
    """A block of `warps`, of which `splits` share a tile; `depth` steps of codes in flight per warp, and scales of `unroll` steps, which
    divide the depth; registers suffice for `blocks` per SM, and `per_sm` of them are launched for each SM."""

    warps: int
    splits: int
    unroll: int
    depth: int
    blocks: int
    per_sm: int

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

    def ring_at(self, operand: Operand) -> int:
        """Where the ring lies behind x, in bytes."""
        return ceil_div(operand.x_bytes, 128) * 128

    def shared_bytes(self, operand: Operand) -> int:
        """Bytes of x and of the ring."""
        return self.ring_at(operand) + self.warps * self.depth * SLOT_WORDS * 4


class Ahead(NamedTuple):
    """Which step of codes a warp copies next, as elements of an array in registers: its tile, its number, the lane's rows."""

    tile: int = 0
    step: int = 1
    low: int = 2
    high: int = 3


AHEAD = Ahead()
SIZE_OF_AHEAD = len(AHEAD)


class Warp(NamedTuple):
    """A warp's place: which of the block's tiles is its, which steps of K, where the lane's part of its ring is, what it goes through."""

    tile: Any  # of the block's tiles
    split: Any
    ring: Any  # as a word of shared memory
    stride: Any  # from a tile of the warp to its next one
    tiles: Any
    n: Any  # rows of weight


@functools.cache
def tensor_core_gemv_kernel(tiling: TensorCoreGemvTiling, operand: Operand, outputs: Outputs):
    """The kernel for weights of an Operand, whose K and dtype of x it fixes."""
    (_, splits, unroll, depth, _, _), words_of_a_step, row_bytes = tiling, operand.words, operand.row_bytes
    tiles_of_block, last_step, table_bytes = tiling.tiles, operand.steps - 1, operand.table_bytes
    padded, sum_type, ring_word = tiling.padded_steps(operand.steps), operand.sum_type, tiling.ring_at(operand) // 4
    chunks, held, sums_of_block = padded // (splits * unroll), max(1, unroll * words_of_a_step), tiling.warps * TILE_ROWS
    two_buffers, rounds, wait_for_oldest, chunk_words = 2 * sums_of_block, depth // unroll, WAIT_GROUP[depth - 1], unroll * SLOT_WORDS
    load, multiply, rows_of = operand.load, operand.multiply, outputs.rows_of

    @cuda.jit(device=True, forceinline=True)
    def rows_of_tile(tile, n):
        """The lane's Rows of a tile."""
        low, high = rows_of(tile * PAIRS + (int32(cuda.threadIdx.x) >> 2 & 7), n)
        return Rows(uint32(low), uint32(high))

    @cuda.jit(device=True, forceinline=True)
    def find_rows(ahead, warp):
        rows = rows_of_tile(ahead[AHEAD.tile], warp.n)
        ahead[AHEAD.low], ahead[AHEAD.high] = int32(rows.low), int32(rows.high)

    @cuda.jit(device=True, forceinline=True)
    def copy(memory, codes, ahead, word, warp):
        """Start to copy the codes of the step ahead, if there is one, to a slot of the ring; `ahead` is the one behind it then."""
        if ahead[AHEAD.tile] < warp.tiles:
            own = (uint32(cuda.threadIdx.x) & uint32(3)) * uint32(LANE_BYTES)
            own = uint32(own + uint32(min(ahead[AHEAD.step], int32(last_step))) * uint32(ROW_BYTES))
            slot = ptx.shared_address(memory, word)
            ptx.cp_async_16(slot, codes, uint32(uint32(ahead[AHEAD.low]) * uint32(row_bytes) + own), 16)
            ptx.cp_async_16(slot + uint32(HALF_SLOT_BYTES), codes, uint32(uint32(ahead[AHEAD.high]) * uint32(row_bytes) + own), 16)
        ptx.cp_async_commit_group()
        ahead[AHEAD.step] += splits
        if ahead[AHEAD.step] >= padded:
            ahead[AHEAD.step] -= padded
            ahead[AHEAD.tile] += warp.stride
            find_rows(ahead, warp)

    @cuda.jit(device=True, forceinline=True)
    def copy_slot(i, memory, codes, ahead, warp):
        copy(memory, codes, ahead, warp.ring + i * SLOT_WORDS, warp)

    @cuda.jit(device=True, forceinline=True)
    def load_step(u, weight, rows, kept, first, words):
        load(weight, rows, kept, min(first + u * splits, int32(last_step)), words, u * words_of_a_step)

    @cuda.jit(device=True, forceinline=True)
    def multiply_step(u, memory, table, weight, ahead, warp, word, kept, first, words, total, goes_on, next_rows, next_kept, next_first):
        """The products of the u-th step of a chunk. Then its slot gets codes, and its words scales, of what comes later."""
        codes, slot = cuda.local.array(CODE_WORDS, uint32), word + u * SLOT_WORDS
        wait_for_oldest()
        load_words(memory, slot, codes, 0)
        load_words(memory, slot + SLOT_WORDS // 2, codes, 4)
        multiply(memory, table, kept, codes, words, u * words_of_a_step, first + u * splits, total)
        copy(memory, weight.codes, ahead, slot, warp)
        if goes_on:
            load_step(u, weight, next_rows, next_kept, next_first, words)

    fill_ring, load_steps, multiply_chunk = unrolled(copy_slot, depth), unrolled(load_step, unroll), unrolled(multiply_step, unroll)

    @cuda.jit(device=True, forceinline=True)
    def add_splits(sums, first):
        """In lane i < 8: the sum of row i of a tile over its warps, and of row i + 8."""
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
        lane, number = int32(cuda.threadIdx.x) & (WARP - 1), int32(cuda.threadIdx.x) >> 5
        stride, tiles = int32(cuda.gridDim.x) * tiles_of_block, int32(pairs + PAIRS - 1) // PAIRS
        warp = Warp(number // splits, number % splits, ring_word + number * (depth * SLOT_WORDS) + lane * 4, stride, tiles, n)
        words, total = cuda.local.array(held, uint32), cuda.local.array(4, sum_type)
        ahead = cuda.local.array(SIZE_OF_AHEAD, int32)
        first_tile, turn, buffer = int32(cuda.blockIdx.x) * tiles_of_block, int32(0), int32(0)
        ahead[AHEAD.tile], ahead[AHEAD.step] = first_tile + warp.tile, warp.split
        find_rows(ahead, warp)
        fill_ring(memory, weight.codes, ahead, warp)
        rows = rows_of_tile(first_tile + warp.tile, n)
        kept = operand.begin(weight, rows)
        load_steps(weight, rows, kept, warp.split, words)
        operand.fill_table(table, weight)
        factor = operand.prepare(x, norm, epsilon, memory)
        while first_tile < tiles:
            following, pair = first_tile + stride, (first_tile + warp.tile) * PAIRS + (lane & (PAIRS - 1))
            next_rows = rows_of_tile(following + warp.tile, n)
            next_kept = operand.begin(weight, next_rows)
            prepared = outputs.prepare(arrays, pair)
            for i in range(4):
                total[i] = 0
            for chunk in range(chunks):
                first, word = chunk * unroll * splits + warp.split, warp.ring + turn * chunk_words
                if chunk + 1 < chunks:
                    then = (True, rows, kept, first + unroll * splits)
                else:
                    then = (following < tiles, next_rows, next_kept, warp.split)
                multiply_chunk(memory, table, weight, ahead, warp, word, kept, first, words, total, *then)
                turn = int32(turn + 1) if turn + 1 < rounds else int32(0)
            low, high = operand.finish(weight, rows, total, factor)
            if lane & 3 == 0:
                sums[buffer + number * TILE_ROWS + (lane >> 2)] = low
                sums[buffer + number * TILE_ROWS + (lane >> 2) + PAIRS] = high
            cuda.syncthreads()
            if warp.split == 0:
                low, high = add_splits(sums, buffer + number * TILE_ROWS)
                if lane < PAIRS and pair < pairs:
                    outputs.write(arrays, prepared, pair, low, high)
            first_tile, buffer, rows, kept = following, sums_of_block - buffer, next_rows, next_kept

    return tensor_core_gemv_kernel
