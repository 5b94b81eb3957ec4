"""Fills the rings of layout.py by TMA, with one warp as producer, on Hopper and later.

TMA sees the codes of a cache as lines of 128 bytes, of one key or of several: a head's keys are contiguous. It loads boxes of one run of
keys each, which lies in one block of the cache and is at most a warp's tile (layout.run_of); scales, which are contiguous too, are loaded
as a run of bytes. Codes arrive swizzled, so that the rows of an ldmatrix tile lie in different banks without padding.

The producer is one warp after those that compute; it loops over the block's run of tiles ahead of them. One lane per ring waits until a
stage is free, starts filling it and looks up the block of the next tile. Each stage has two mbarriers, after the codes and scales of its
ring: one on which copies arrive and its readers wait, and one on which the readers arrive and the producer waits. So the computing warps
spend no instruction on the addresses of keys (docs/split-decode.md).

TMA requests every sector from L2 once, whereas cp.async's prefetches request it twice; boxes with rows of 64 bytes would lose that again.
It also loads slots of a block beyond the end of a context. They may hold NaN, so rows and scales that must not be seen are cleared after
they have arrived.
"""

import functools

from numba import cuda, int32, int64, uint32

from minllm.kernels.attention.split_quantized.layout import BARRIER_BYTES, LINE_BYTES, make_scale_places, run_of
from minllm.kernels.attention.split_quantized.ring import make_clear_scales, make_look_up
from minllm.kernels.attention.split_tensor_core.plan import quotient
from minllm.kernels.attention.split_tensor_core.tile_loop import Ring, Source
from minllm.ptx import (
    cp_async_bulk_shared_global,
    cp_async_bulk_tensor_2d_shared_global,
    fence_mbarrier_init,
    fence_proxy_async,
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
    mbarrier_wait_parity,
)


@functools.cache
def make_barriers(layout, warps):
    """(setup, filled): device functions that initialise the mbarriers of a warp's ring, and return the address of the one that completes
    when a stage is filled; the one that completes when it is free is 8 bytes after that."""
    barriers_at, stages, stage_bytes = layout.barriers_at, layout.stages, layout.stage_bytes

    @cuda.jit(device=True)
    def setup(ring):
        if ring.warp < warps and ring.lane == 0:
            for i in range(2 * stages):
                mbarrier_init(uint32(ring.base + barriers_at + 8 * i), 1)
            fence_mbarrier_init()

    @cuda.jit(device=True)
    def filled(ring, stage):
        return uint32(ring.base + barriers_at + uint32(stage - ring.base) // uint32(stage_bytes) * uint32(BARRIER_BYTES))

    return setup, filled


@functools.cache
def make_producer(layout, block_size, head_tiles, warps, plan):
    """produce(cursor, ring, batch, cache): the loop of the producer warp; head_tiles: heads of the line per KV head."""
    keys, row_bytes, scale_words, groups = layout.keys, layout.row_bytes, layout.scale_words, layout.kv_format.groups
    stage_bytes, ring_bytes, ring_stages = layout.stage_bytes, layout.ring_bytes, layout.stages * layout.stage_bytes
    aim, look_up = make_look_up(block_size, keys, warps, plan.visible_keys)
    (scales_of, _), advance = make_scale_places(layout), plan.advance
    run, rows_per_line, (_, filled) = run_of(block_size, keys), LINE_BYTES // row_bytes, make_barriers(layout, warps)
    runs, run_bytes, run_scale_bytes = keys // run, run * row_bytes, 4 * scale_words // (keys // run)

    @cuda.jit(device=True)
    def copy_tile(ahead, head, kv_heads, cache, ring):
        """Start copying a warp's tile to ring.free, except runs without visible keys."""
        barrier, scales, visible = filled(ring, ring.free), scales_of(ring), int32(0)
        for i in range(runs):
            at = int32(ahead.position + i * run)
            if at < ahead.stop and int32(at + run) > ahead.start:
                visible = int32(visible + 1)
        mbarrier_arrive_expect_tx(barrier, uint32(visible * (2 * (run_bytes + run_scale_bytes))))
        for i in range(runs):
            at = int32(ahead.position + i * run)
            if at < ahead.stop and int32(at + run) > ahead.start:
                slot = uint32(uint32(at) % uint32(block_size))
                block_head = uint32(uint32(cache.blocks[i]) * kv_heads + head)
                row = uint32(block_head * uint32(block_size) + slot)  # row of [num_blocks, kv_heads, block_size]
                to, line = uint32(ring.free + i * run_bytes), uint32(row // uint32(rows_per_line))
                cp_async_bulk_tensor_2d_shared_global(to, cache.keys, 0, line, barrier)
                cp_async_bulk_tensor_2d_shared_global(uint32(to + keys * row_bytes), cache.values, 0, line, barrier)
                if scale_words > 0:
                    element, to = int64(row) * (2 * groups), uint32(scales + i * run_scale_bytes)
                    cp_async_bulk_shared_global(to, cache.key_scales, element, run_scale_bytes, barrier)
                    cp_async_bulk_shared_global(uint32(to + 4 * scale_words), cache.value_scales, element, run_scale_bytes, barrier)

    @cuda.jit(device=True)
    def produce(cursor, ring, batch, cache):
        """Start copying all tiles from the cursor on, as stages become free; lane i fills the ring of warp i."""
        lane, kv_heads = ring.lane, uint32(quotient(batch.line_heads, head_tiles))
        base = uint32(ring.start + lane * ring_bytes)
        stage, parity = base, uint32(1)  # all stages are free at first
        mine = Ring(ring.words, ring.start, base, base, base, parity, lane, lane)
        ahead = aim(cursor, batch, mine, cache)
        while ahead.cursor.left > 0:
            if lane < warps:
                here = Ring(ring.words, ring.start, base, base, stage, parity, lane, lane)
                mbarrier_wait_parity(uint32(filled(here, stage) + 8), parity)
                copy_tile(ahead, uint32(quotient(ahead.cursor.head, head_tiles)), kv_heads, cache, here)
            cuda.syncwarp()
            ahead = look_up(advance(ahead.cursor, 1, batch), ahead, batch, mine, cache)
            stage = uint32(stage + stage_bytes)
            if stage == uint32(base + ring_stages):
                stage, parity = base, uint32(parity ^ 1)

    return produce


@functools.cache
def make_source(layout, block_size, head_tiles, warps, plan):
    """(Source that loads codes by TMA, aim, produce): the computing warps only wait for tiles and release them."""
    keys, scale_words = layout.keys, layout.scale_words
    clear_scales, (setup, filled) = make_clear_scales(layout), make_barriers(layout, warps)
    row_chunks, row_words, rows_per_line = layout.row_bytes // 16, layout.row_bytes // 4, LINE_BYTES // layout.row_bytes

    @cuda.jit(device=True)
    def aim(cursor, batch, ring, cache):
        """The cursor itself: only the producer looks up blocks."""
        return cursor

    @cuda.jit(device=True)
    def fetch(ahead, ring, batch, cache):
        return ahead

    @cuda.jit(device=True)
    def clear_rows(ring, first, rows):
        """Clear `rows` rows of K and of V of the oldest tile, from row `first` on."""
        word, lane = uint32((ring.stage - ring.start) // 4), ring.lane
        for row in range(first, first + rows):
            if lane < row_words:
                line = quotient(row, rows_per_line)
                chunk = int32((row - line * rows_per_line) * row_chunks + lane // 4) ^ int32(line % 8)
                at = uint32(word + line * (LINE_BYTES // 4) + chunk * 4 + lane % 4)
                ring.words[at] = uint32(0)
                ring.words[uint32(at + keys * row_words)] = uint32(0)

    @cuda.jit(device=True)
    def wait(ring, position, visible):
        """Wait for the oldest tile and, at an edge of the context, clear rows and scales."""
        start, stop = visible
        mbarrier_wait_parity(filled(ring, ring.stage), ring.parity)
        if position < start or int32(position + keys) > stop:
            before, seen = min(keys, max(0, start - position)), min(keys, max(0, stop - position))
            clear_rows(ring, 0, before)
            clear_rows(ring, seen, keys - seen)
            if scale_words > 0:
                clear_scales(ring, position, visible)
            fence_proxy_async()  # before the copies that fill the stage again
        cuda.syncwarp()

    @cuda.jit(device=True)
    def release(ring):
        """Release the stage once all lanes have read it, so that it may be filled again."""
        cuda.syncwarp()
        if ring.lane == 0:
            mbarrier_arrive(uint32(filled(ring, ring.stage) + 8))

    produce = make_producer(layout, block_size, head_tiles, warps, plan)
    return Source(setup, fetch, wait, release, layout.stage_bytes, layout.ring_bytes), aim, produce
