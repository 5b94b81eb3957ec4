"""Grouped GEMM on Hopper for prompts: TMA loads tiles, wgmma multiplies them; see grouped_gemm.py for the equations.

With 128 pairs per expert reading the weights is the time: 128 FLOPs per byte, where a GPU of 800 TFLOP/s and 4.2 TB/s does 190. So a tile
takes all pairs of an expert, up to `tokens`, and its weights leave HBM and L2 once. More pairs are divided evenly among tiles that
neighbouring blocks compute at the same time: those of the same rows of weight first, then those of the same pairs. Blocks are persistent,
one per SM, and compute one tile after another.

    producer    one thread loads 64 columns of weight and of x per step by TMA, also those of the next tile while this one's outputs leave
    consumers   a warpgroup multiplies two blocks of 64 rows of weight, of the gate and of up, or of two halves of the columns: a thread
                then has both factors of an output

wgmma leaves a warp 16 rows of weight of each token, and in out these are 16 neighbours. So stmatrix transposes 32 tokens at a time into
shared memory, 64 outputs of a token in 128 bytes, and every 8 threads store 128 bytes of a row.

N of a tile is the smallest multiple of 32 that holds its pairs. Rows of x behind them are those of the next expert, and their outputs are
not stored; x is in the order of experts (gather_rows.py). Sums are the same bits as those of grouped_gemm.py: one accumulator, in ascending
order of k.

Source: PTX ISA, "wgmma.mma_async", "cp.async.bulk.tensor", "stmatrix"; kernels/matmul/wgmma (persistent blocks).
"""

import functools
from typing import NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint32

from minllm import ptx
from minllm.kernels.activation.sigmoid import sigmoid
from minllm.kernels.arguments import ceil_div
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.experts.grouped_gemm import check_grouped
from minllm.kernels.matmul.output_tiles import PACK
from minllm.kernels.vector import vectors_per_row
from minllm.runtime.device import SHARED_BYTES_PER_BLOCK, current_device
from minllm.runtime.kernel import check, kernel, launch
from minllm.runtime.tensor_map import tensor_map
from minllm.tiles import tma, warpgroup
from minllm.tiles.pipeline import make_pipeline
from minllm.tiles.shared import ALIGNMENT, SharedTile, first_tile_address
from minllm.tiles.unrolled import unrolled
from minllm.tiles.warpgroup import ROWS, THREADS
from minllm.tiles.wgmma import make_wgmma

TILE_K, LINE_BYTES = 64, 128  # elements of a step, and their bytes: the swizzle's span
PIECE = 32  # rows of x per TMA load, and tokens whose outputs leave at a time
FEWEST_PAIRS = 64  # per expert on average: fewer leave most of a tile empty, and grouped_gemm.py reads weights as fast
SIMULATED_SMS = 2  # few, so that blocks compute several tiles


class GroupedWgmmaTiling(NamedTuple):
    """`warpgroups` with two blocks of 64 rows of weight each, at most `tokens` pairs per tile, `stages` steps of K in flight."""

    warpgroups: int
    tokens: int
    stages: int

    @property
    def rows(self) -> int:
        """Rows of weight of a tile."""
        return 2 * self.warpgroups * ROWS

    @property
    def threads(self) -> int:
        """Threads per block: the consumers and the producer's warpgroup."""
        return (self.warpgroups + 1) * THREADS

    @property
    def stage_bytes(self) -> int:
        """Bytes of a step's tiles."""
        return (self.rows + self.tokens) * LINE_BYTES

    @property
    def staging_bytes(self) -> int:
        """Bytes through which outputs leave: two buffers per warpgroup."""
        return 2 * self.warpgroups * PIECE * LINE_BYTES

    @property
    def shared_bytes(self) -> int:
        """Bytes of the ring, of outputs, of two barriers per stage, and room to begin at a multiple of ALIGNMENT."""
        return self.stages * (self.stage_bytes + 16) + self.staging_bytes + ALIGNMENT

    def check(self) -> None:
        """Raise KernelArgumentError unless the tiling can be launched."""
        check(self.tokens % PIECE == 0 and 2 <= self.stages, f"{self}: whole {PIECE}s of tokens, and at least 2 stages")
        room = f"{self}: {self.shared_bytes} bytes of shared memory; a block has {SHARED_BYTES_PER_BLOCK}"
        check(self.shared_bytes <= SHARED_BYTES_PER_BLOCK, room)


class Tile(NamedTuple):
    """A tile of out: its expert and block of columns, and `count` pairs from place `first` on; before: the tiles of earlier experts."""

    expert: int
    before: int
    column: int
    first: int
    count: int


TILING = GroupedWgmmaTiling(2, 160, 4)


def make_find(tokens: int):
    """The device function that finds a tile by its number; its expert is the number of experts if there is no such tile."""

    @cuda.jit(device=True, forceinline=True)
    def find(offsets, columns, number, expert, before):
        """expert, before: those of a tile with a lower number, where the search begins; columns: blocks of columns of out."""
        experts, begin = int32(offsets.shape[0] - 1), offsets[expert]
        end, strides = begin, int32(1)
        while expert < experts:
            end = offsets[expert + 1]
            strides = int32((end - begin + tokens - 1) // tokens)
            if number < before + strides * columns:
                break
            expert, before, begin = int32(expert + 1), int32(before + strides * columns), end
        strides = max(strides, int32(1))
        column = int32((number - before) // strides)
        each = int32(((end - begin + strides - 1) // strides + 7) // 8 * 8)
        first = int32(begin + (number - before - column * strides) * each)
        return Tile(expert, before, column, first, int32(min(each, int32(end - first))))

    return find


def make_store(dtype: str, gated: bool, batches: int):
    """The device function with which a warpgroup stores the outputs of 32 * batches tokens from its two blocks of sums.

    rows[part]: the row of out of this thread's token in the part-th 16; gated: out has the order of the tile's pairs.
    """
    pack, halves = PACK[dtype], 1 if gated else 2

    @cuda.jit(device=True, forceinline=True)
    def word_of(low, high, at, half):
        """Two neighbouring tokens of an output: silu(gate) * up, or the sums of one of the blocks."""
        if gated:
            first, second = low[at], low[at + 1]
            return pack(first * sigmoid(first) * high[at], second * sigmoid(second) * high[at + 1])
        return pack(low[at], low[at + 1]) if half == 0 else pack(high[at], high[at + 1])

    @cuda.jit(device=True, forceinline=True)
    def lay_down(low, high, at, half, buffer, thread):
        """Write the warp's 16 outputs of 32 tokens to shared memory, from sum `at` on."""
        words, warp, lane = cuda.local.array(4, uint32), thread >> 5, thread & 31
        for block in range(PIECE // 16):
            for i in range(4):
                words[i] = word_of(low, high, at + 8 * block + 2 * i, half)
            token = 16 * block + (lane >> 4) * 8 + (lane & 7)
            piece = uint32(2 * warp + (lane >> 3 & 1)) ^ uint32(token & 7)
            ptx.stmatrix_x4_trans(uint32(buffer + token * LINE_BYTES + piece * 16), words, 0)

    @cuda.jit(device=True, forceinline=True)
    def copy_out(memory, word, out, rows, at, first, count, column, thread):
        """Store 64 columns of `count` tokens from shared memory, every 8 threads 128 bytes of a row."""
        piece = thread & 7
        for part in range(PIECE // 16):
            token = int32(part * 16 + (thread >> 3))
            if token < count and column + 8 * piece < out.shape[1]:
                row = int32(first + token) if gated else rows[at + part]
                a, b, c, d = ptx.load_128(memory, uint32(word + token * (LINE_BYTES // 4) + (piece ^ token & 7) * 4))
                ptx.store_128(out, row * out.shape[1] + column + 8 * piece, a, b, c, d)

    @cuda.jit(device=True, forceinline=True)
    def store_batch(batch, low, high, memory, staging, word, out, rows, tile, column, apart, barrier, thread):
        """Store the batch // halves-th 32 tokens, of one of the halves."""
        half, part = batch % halves, batch // halves
        offset = batch % 2 * PIECE * LINE_BYTES
        lay_down(low, high, 16 * part, half, uint32(staging + offset), thread)
        warpgroup.sync(barrier)  # and the batch before has left the other buffer, which the next one overwrites
        first, count = int32(tile.first + PIECE * part), int32(tile.count - PIECE * part)
        copy_out(memory, uint32(word + offset // 4), out, rows, part * (PIECE // 16), first, count, int32(column + half * apart), thread)

    return unrolled(store_batch, batches * halves)


def make_consume(n: int, tiling: GroupedWgmmaTiling, dtype: str, gated: bool, pipeline):
    """The device function with which a warpgroup computes its part of a tile of up to n pairs."""
    weight_bytes, block_columns = tiling.rows * LINE_BYTES, tiling.rows // 2
    wgmma = make_wgmma(SharedTile(n, TILE_K), dtype, left=SharedTile(tiling.rows, TILE_K))
    store, registers, parts = make_store(dtype, gated, n // PIECE), wgmma.registers, n // 16

    @cuda.jit(device=True, forceinline=True)
    def consume(memory, staging, word, ring, out, pairs, tile, steps, done, thread):
        """done: steps of earlier tiles; staging, word: the address and the place in `memory` where the block's outputs leave."""
        group, own = thread >> 7, thread & 127
        left = wgmma.left(uint32(ring.stages + group * ROWS * LINE_BYTES))
        second = wgmma.left(uint32(ring.stages + weight_bytes // 2 + group * ROWS * LINE_BYTES))
        right = wgmma.right(ring.stages + weight_bytes)
        low, high = cuda.local.array(registers, float32), cuda.local.array(registers, float32)
        for i in range(registers):
            low[i], high[i] = float32(0), float32(0)
        rows = cuda.local.array(parts, int32)
        for part in range(parts):  # on their way while the tensor cores multiply
            place = min(int32(16 * part + (own >> 3)), int32(tile.count - 1))
            rows[part] = int32(0) if gated else pairs[tile.first + place]
        state = previous = pipeline.state(done)
        for step in range(steps):
            pipeline.consumer_wait(ring, state)
            wgmma.multiply(low, pipeline.operand(left, state), pipeline.operand(right, state), 1)
            wgmma.multiply(high, pipeline.operand(second, state), pipeline.operand(right, state), 1)
            ptx.wgmma_wait_group_2()  # the previous step is complete, this one is in flight
            if step > 0:
                pipeline.consumer_release(ring, previous)
            previous, state = state, pipeline.advance(state)
        wgmma.wait(low)
        wgmma.wait(high)
        pipeline.consumer_release(ring, previous)
        warpgroup.sync(1 + group)  # the tile before has left shared memory
        bytes_before = group * 2 * PIECE * LINE_BYTES
        column = int32(tile.column * (block_columns if gated else 2 * block_columns) + group * ROWS)
        store(low, high, memory, uint32(staging + bytes_before), uint32(word + bytes_before // 4), out, rows, tile, column, block_columns,
              1 + group, own)  # fmt: skip

    return consume


def make_consume_any(tiling: GroupedWgmmaTiling, dtype: str, gated: bool, pipeline):
    """The device function of a warpgroup for a tile of any number of pairs: that of the smallest multiple of 32 that holds them."""
    consumes = [make_consume(n, tiling, dtype, gated, pipeline) for n in range(PIECE, tiling.tokens + 1, PIECE)]

    def up_to(size: int):
        consume, smaller = consumes[size], up_to(size - 1) if size else None

        @cuda.jit(device=True, forceinline=True)
        def smallest(memory, staging, word, ring, out, pairs, tile, steps, done, thread):
            consume(memory, staging, word, ring, out, pairs, tile, steps, done, thread)

        @cuda.jit(device=True, forceinline=True)
        def fitting(memory, staging, word, ring, out, pairs, tile, steps, done, thread):
            if tile.count > size * PIECE:
                consume(memory, staging, word, ring, out, pairs, tile, steps, done, thread)
            else:
                smaller(memory, staging, word, ring, out, pairs, tile, steps, done, thread)

        return fitting if size else smallest

    return up_to(len(consumes) - 1)


@functools.cache
def grouped_wgmma_kernel(tiling: GroupedWgmmaTiling, dtype: str, gated: bool):
    """The kernel for x and weight of `dtype`; gated: out = silu(gate) * up."""
    tiling.check()
    consumers, columns_of_tile = tiling.warpgroups * THREADS, tiling.rows // 2 if gated else tiling.rows
    weight_bytes, half_rows, staging_bytes = tiling.rows * LINE_BYTES, tiling.rows // 2, tiling.staging_bytes
    warpgroups = tiling.warpgroups
    pipeline = make_pipeline(tiling.stages, tiling.stage_bytes, tiling.warpgroups)
    ring_bytes = pipeline.bytes
    find, consume = make_find(tiling.tokens), make_consume_any(tiling, dtype, gated, pipeline)

    @cuda.jit(device=True, forceinline=True)
    def produce(x_map, weight_map, ring, tile, row, second_row, steps, done):
        """Load all steps of a tile, as far ahead as stages are empty."""
        pieces, state = int32((tile.count + PIECE - 1) // PIECE), pipeline.state(done)
        for step in range(steps):
            stage = pipeline.producer_acquire(ring, state)
            pipeline.producer_expect(stage, weight_bytes + pieces * PIECE * LINE_BYTES)
            tma.load_2d(stage, 0, weight_map, int32(step * TILE_K), row)
            tma.load_2d(stage, weight_bytes // 2, weight_map, int32(step * TILE_K), second_row)
            for piece in range(pieces):
                at = uint32(weight_bytes + piece * PIECE * LINE_BYTES)
                tma.load_2d(stage, at, x_map, int32(step * TILE_K), int32(tile.first + piece * PIECE))
            state = pipeline.advance(state)

    @cuda.jit(device=True, forceinline=True)
    def produce_all(x_map, weight_map, ring, offsets, columns, steps):
        experts, blocks = int32(offsets.shape[0] - 1), int32((columns + columns_of_tile - 1) // columns_of_tile)
        number, done = int32(cuda.blockIdx.x), int32(0)
        tile = find(offsets, blocks, number, int32(0), int32(0))
        while tile.expert < experts:
            row = int32(tile.expert * (2 * columns if gated else columns) + tile.column * columns_of_tile)
            produce(x_map, weight_map, ring, tile, row, int32(row + (columns if gated else half_rows)), steps, done)
            number, done = int32(number + cuda.gridDim.x), int32(done + steps)
            tile = find(offsets, blocks, number, tile.expert, tile.before)

    @cuda.jit(device=True, forceinline=True)
    def consume_all(memory, staging, word, ring, offsets, out, pairs, steps, thread):
        experts, blocks = int32(offsets.shape[0] - 1), int32((out.shape[1] + columns_of_tile - 1) // columns_of_tile)
        number, done = int32(cuda.blockIdx.x), int32(0)
        tile = find(offsets, blocks, number, int32(0), int32(0))
        while tile.expert < experts:
            consume(memory, staging, word, ring, out, pairs, tile, steps, done, thread)
            number, done = int32(number + cuda.gridDim.x), int32(done + steps)
            tile = find(offsets, blocks, number, tile.expert, tile.before)

    @kernel(launch_bounds=(tiling.threads, 1), dependent_launch=True)
    def grouped_wgmma_kernel(x_map, weight_map, pairs, offsets, out, steps):
        """x [P, K] in boxes [32, 64], weight [E * N, K] in boxes of half a tile's rows, pairs [P], offsets [E + 1], out [P, N / 2 or N];
        grid: the blocks that run at once."""
        memory = cuda.shared.array(0, uint32, 1024)
        thread, first_stage = int32(cuda.threadIdx.x), first_tile_address(memory)
        staging = uint32(first_stage + ring_bytes)
        ring = pipeline.ring(first_stage, staging + staging_bytes, 0)
        if thread == 0:
            pipeline.init(ring)
        cuda.syncthreads()
        wait_for_predecessors()
        if thread >= consumers:
            if warpgroups == 2:
                ptx.setmaxnreg_dec(40)
            if thread == consumers:
                produce_all(x_map, weight_map, ring, offsets, int32(out.shape[1]), steps)
        else:
            if warpgroups == 2:
                ptx.setmaxnreg_inc(232)
            word = uint32((staging - ptx.shared_address(memory, 0)) >> uint32(2))
            consume_all(memory, staging, word, ring, offsets, out, pairs, steps, thread)

    return grouped_wgmma_kernel


def takes(pairs: int, experts: int) -> bool:
    """Whether this number of pairs is worth the kernel."""
    return pairs >= FEWEST_PAIRS * experts


def wgmma_gate_up(x, pairs, offsets, gate_up, out, stream=None, tiling: GroupedWgmmaTiling | None = None) -> None:
    """Write silu(gate_e x[p]) * (up_e x[p]) of the pairs p into `out` [P, I]: grouped_gate_up for x [P, H] in the order of experts.

    Rows of out begin on multiples of 16 bytes. Raises KernelArgumentError for other arrays than grouped_gate_up takes.
    """
    check_grouped(x, pairs, offsets, gate_up, out, 2 * out.shape[1])
    launch_wgmma(x, pairs, offsets, gate_up, out, True, stream, tiling or TILING)


def wgmma_down(activated, pairs, offsets, down, out, stream=None, tiling: GroupedWgmmaTiling | None = None) -> None:
    """Write down_e activated[p] of the pairs p into `out` [P, H], in the order of tokens: grouped_down; arrays as in wgmma_gate_up."""
    check_grouped(activated, pairs, offsets, down, out, out.shape[1])
    launch_wgmma(activated, pairs, offsets, down, out, False, stream, tiling or TILING)


def launch_wgmma(x, pairs, offsets, weight, out, gated: bool, stream, tiling: GroupedWgmmaTiling) -> None:
    """Launch for checked arrays."""
    check(vectors_per_row(out.shape[1], out) > 0, f"rows of out {list(out.shape)} begin on multiples of 16 bytes")
    x_map, weight_map = tensor_map(x, (PIECE, TILE_K)), tensor_map(weight, (tiling.rows // 2, TILE_K))
    experts, columns = offsets.shape[0] - 1, tiling.rows // 2 if gated else tiling.rows
    tiles = ceil_div(out.shape[1], columns) * min(pairs.shape[0], experts + pairs.shape[0] // tiling.tokens)
    sms = SIMULATED_SMS if isinstance(out, np.ndarray) else current_device().sm_count
    chosen = grouped_wgmma_kernel(tiling, x.dtype.name, gated)
    arguments = (x_map, weight_map, pairs, offsets, out, ceil_div(x.shape[1], TILE_K))
    launch(chosen, min(tiles, sms), tiling.threads, arguments, stream, tiling.shared_bytes)
