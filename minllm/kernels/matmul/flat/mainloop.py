"""Mainloop of the flat GEMMs for Hopper: from tiles of weight and x to float32 sums in shared memory.

One thread, the producer, fills the pipeline's stages by TMA; consumers, warpgroups, multiply them. Each kernel around it decides which rows
of weight a block owns, and what becomes of the sums: flat_wgmma.py, deferred_norm.py, rope_append.py. A kernel calls, in this order:

    share, ring, sums_at = mainloop.open(...)      all threads
    mainloop.begin                                 the producer: starts to load weights, which no kernel writes
    sync_blocks(sharers)
    mainloop.consume / mainloop.produce            the consumers / the producer, which waits for the kernels that write x
    sync_blocks(cluster)                           then mainloop.added(memory, sums_at, place) adds the parts of split-K

Source: PTX ISA, "cp.async.bulk.tensor", "wgmma.mma_async", "mapa".
"""

from collections.abc import Callable
from typing import NamedTuple

from numba import cuda, int32, uint32

from minllm import ptx
from minllm.kernels.arguments import ceil_div
from minllm.kernels.matmul.flat.output import make_added, make_keep_sums
from minllm.kernels.matmul.flat.wgmma_tiling import TILE_K, FlatWgmmaTiling
from minllm.runtime.kernel import launch
from minllm.runtime.tensor_map import tensor_map
from minllm.tiles import tma
from minllm.tiles.pipeline import PipelineState, make_pipeline
from minllm.tiles.shared import SharedTile, first_tile_address, make_clear_rows
from minllm.tiles.warpgroup import ROWS, THREADS
from minllm.tiles.wgmma import make_wgmma


class Share(NamedTuple):
    """A block's part of the work: steps of K, rows of weight, m rows of x.

    row: the first row of weight. second_row: with halves, the first row of the second half.
    """

    first_step: int
    steps: int
    row: int
    second_row: int
    m: int
    split: int
    sharer: int
    blocks: int  # bit mask of the cluster's blocks that share x


class Mainloop(NamedTuple):
    """The device functions of a mainloop, see the top of this file."""

    tile_of_block: Callable
    open: Callable
    begin: Callable
    consume: Callable
    produce: Callable
    added: Callable


def make_mainloop(tokens: int, tiling: FlatWgmmaTiling, dtype: str, halves: bool) -> Mainloop:
    """The Mainloop for up to `tokens` rows of x.

    dtype: as in tiles/wgmma.py, with 8-bit codes in pairs. halves: half of a block's rows of weight begin at share.second_row.
    """
    tiling.check(tokens)
    stages, splits, sharers, consumers = tiling.stages, tiling.splits, tiling.sharers, tiling.warpgroups * THREADS
    cluster, all_sharers = splits * sharers, (1 << sharers) - 1
    weight_tile, x_tile, x_part = SharedTile(tiling.rows, TILE_K), SharedTile(tokens, TILE_K), SharedTile(tokens // sharers, TILE_K)
    weight_bytes, row_bytes, part_rows, part_bytes = weight_tile.bytes, weight_tile.swizzle, x_part.rows, x_part.bytes
    pipeline = make_pipeline(stages, tiling.stage_bytes(tokens), tiling.warpgroups, sharers=sharers)
    ring_bytes = max(pipeline.bytes, tiling.sums_bytes(tokens))
    keep_sums = make_keep_sums(tiling.rows, tokens // 8)
    clear_rows = make_clear_rows(stages, tiling.stage_bytes(tokens), row_bytes, consumers, 4)
    wgmma = make_wgmma(x_tile, dtype, left=weight_tile)  # weight takes the 64-row side, x the side that is a multiple of 8
    registers, sum_type = wgmma.registers, wgmma.sum_type

    @cuda.jit(device=True, forceinline=True)
    def tile_of_block():
        """The number of this block's tile of weight; blocks that split K have the same tile."""
        return int32(cuda.blockIdx.x // cluster * sharers + cuda.blockIdx.x % sharers)

    @cuda.jit(device=True, forceinline=True)
    def open(memory, k_steps, row, second_row, m):
        """(share, ring, first element of the sums in memory)."""
        first_stage = first_tile_address(memory)
        rank = int32(cuda.blockIdx.x % cluster)
        split, sharer = rank // sharers, rank % sharers
        first_step = int32(k_steps * split // splits)
        steps = int32(k_steps * (split + 1) // splits - first_step)
        share = Share(first_step, steps, row, second_row, m, split, sharer, all_sharers << (split * sharers))
        ring = pipeline.ring(first_stage, first_stage + ring_bytes, split * sharers)
        return share, ring, uint32((first_stage - ptx.shared_address(memory, 0)) >> uint32(2))

    @cuda.jit(device=True, forceinline=True)
    def load_weight(stage, weight_map, step, share):
        """Load one step's columns of `rows` rows of weight: neighbours, or half gate rows and half up rows."""
        pipeline.producer_expect(stage, weight_bytes + (share.m if sharers == 1 else tokens) * row_bytes)
        tma.load_2d(stage, 0, weight_map, (share.first_step + step) * TILE_K, share.row)
        if halves:
            tma.load_2d(stage, weight_bytes // 2, weight_map, (share.first_step + step) * TILE_K, share.second_row)

    @cuda.jit(device=True, forceinline=True)
    def load_x(stage, x_map, step, share):
        """Load one step's columns of all tokens; each of the blocks that share them loads its part for all."""
        column = int32((share.first_step + step) * TILE_K)
        if sharers == 1:
            tma.load_2d(stage, weight_bytes, x_map, column, 0)
        else:
            first, at = int32(share.sharer * part_rows), uint32(weight_bytes + share.sharer * part_bytes)
            tma.load_2d_multicast(stage, at, x_map, column, first, share.blocks)

    @cuda.jit(device=True, forceinline=True)
    def begin(weight_map, ring, share):
        """Make the barriers and start the first loads of weights, which no kernel writes."""
        pipeline.init(ring)
        for step in range(min(share.steps, stages)):
            load_weight(pipeline.stage(ring, PipelineState(uint32(step), uint32(0))), weight_map, step, share)

    @cuda.jit(device=True, forceinline=True)
    def produce(x_map, weight_map, ring, share):
        """Load x for the first stages once it is written, then weight and x for every stage that becomes empty."""
        ptx.griddepcontrol_wait()
        for step in range(min(share.steps, stages)):
            load_x(pipeline.stage(ring, PipelineState(uint32(step), uint32(0))), x_map, step, share)
        state, step = pipeline.state(stages), int32(stages)
        while step < share.steps:
            stage = pipeline.producer_acquire(ring, state)
            load_weight(stage, weight_map, step, share)
            load_x(stage, x_map, step, share)
            state, step = pipeline.advance(state), int32(step + 1)

    @cuda.jit(device=True, forceinline=True)
    def consume(memory, sums_at, ring, share, thread):
        """memory[sums_at + token * (rows + PADDING) + row] = the sums of a warpgroup's 64 rows of weight over this block's part of K."""
        weight, x = wgmma.left(ring.stages + (thread >> 7) * ROWS * row_bytes), wgmma.right(ring.stages + weight_bytes)
        sums = cuda.local.array(registers, sum_type)
        for i in range(registers):
            sums[i] = 0
        if sharers == 1 and share.m < tokens:
            clear_rows(memory, 4 * sums_at + weight_bytes + share.m * row_bytes, tokens - share.m, thread)
            ptx.bar_sync(1, consumers)
        state = previous = pipeline.state(0)
        for step in range(share.steps):
            pipeline.consumer_wait(ring, state)
            wgmma.multiply(sums, pipeline.operand(weight, state), pipeline.operand(x, state), 1)
            ptx.wgmma_wait_group_1()  # the previous step is complete, this one is in flight
            if step > 0:
                pipeline.consumer_release(ring, previous)
            previous, state = state, pipeline.advance(state)
        wgmma.wait(sums)
        ptx.bar_sync(1, consumers)  # all tiles have been multiplied: the sums may overwrite them
        keep_sums(sums, 0, memory, sums_at, (thread >> 5) * 16, thread & 31)

    return Mainloop(tile_of_block, open, begin, consume, produce, make_added(splits, sharers))


def launch_flat_wgmma(kernel, x, weight, arguments, tokens: int, tiling: FlatWgmmaTiling, tiles: int, halves: bool, stream) -> None:
    """Launch a kernel with a mainloop for this number of tiles of weight; arguments: those after the tensor maps."""
    # The box ends at the last row of x: TMA fills absent rows with zeros four times as slowly as it loads rows.
    x_map = tensor_map(x, (x.shape[0] if tiling.sharers == 1 else tokens // tiling.sharers, TILE_K), promotion=128)
    weight_map = tensor_map(weight, (tiling.rows // 2 if halves else tiling.rows, TILE_K), promotion=128)
    cluster = tiling.splits * tiling.sharers
    grid, cluster = ceil_div(tiles, tiling.sharers) * cluster, None if cluster == 1 else (cluster, 1, 1)
    launch(kernel, grid, tiling.threads, (x_map, weight_map, *arguments), stream, tiling.shared_bytes(tokens), cluster)
