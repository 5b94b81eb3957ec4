"""The rings of code_ring.py filled by the copy engine, which one more warp of the block keeps busy. For Hopper and later.

The codes of a cache are lines of 128 bytes to the engine, of one key or of several: a head's keys lie side by side. It fetches boxes of as
many as certainly lie in one block of the cache, at most a warp's tile; scales, which lie side by side too, come as a run of bytes. Codes
arrive swizzled, so that the rows of an ldmatrix tile lie in different banks without padding.

The producer, a warp behind those that compute, goes along the block's run of tiles, ahead of them: a lane for each of their rings waits
until a stage is free, has it filled and looks up where the next tile lies. Each stage has two mbarriers behind its ring: the copies report
to the one that its readers wait for, and the readers to the one that the producer waits for. So those that compute spend no instruction
on where keys lie; when they issued their own copies, that was 43 % of their time over codes of 4 bits.

As for bfloat16 (split_tensor_core/tensor_ring.py) TMA asks the L2 cache for every sector once, where cp.async's prefetches ask twice; so it
would for boxes of rows of 64 bytes, a request each. The engine also fetches slots of a block beyond a context's end. What lies there may be
NaN, so rows and scales that must not be seen are cleared once they have arrived.
"""

import functools

from numba import cuda, int32, int64, uint32

from minllm.kernels.attention.split_quantized.code_ring import (
    BARRIER_BYTES,
    BLOCKS,
    LINE_BYTES,
    PLACE_SEQUENCE,
    POSITION,
    START,
    STOP,
    SWIZZLE_BYTES,
    make_aim,
    make_clear_scales,
    make_scale_places,
    place_fields_of,
    ring_bytes_of,
    row_bytes_of,
    run_of,
    scale_bytes_of,
    scale_words_of,
    stage_bytes_of,
)
from minllm.kernels.attention.split_tensor_core.plan import HEAD, LEFT, make_walk, quotient
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
from minllm.runtime.tensor_map import tensor_map

SMALLEST_TILE = 16  # keys


def can_fetch(kv_format, block_size):
    """Whether the copy engine can fetch a cache's codes: lines of whole keys, in boxes after which the swizzle repeats."""
    code_bytes, run = kv_format.code_bytes, run_of(block_size, SMALLEST_TILE)
    return LINE_BYTES % code_bytes == 0 and run * code_bytes % SWIZZLE_BYTES == 0


def map_of(codes, keys):
    """The tensor map of a cache's codes for tiles of `keys` keys."""
    lines = codes.reshape(-1, LINE_BYTES)
    box_bytes = run_of(codes.shape[2], keys) * codes.shape[3]
    return tensor_map(lines, (box_bytes // LINE_BYTES, LINE_BYTES), swizzle=LINE_BYTES, promotion=LINE_BYTES)


@functools.cache
def make_code_tensor_ring(kv_format, block_size, head_tiles, keys, warps, stages):
    """(setup, produce, wait, release): device functions for the rings of a block, one for each of `warps` warps.

    head_tiles: heads of the line for each KV head. Of `cache` the first two are tensor maps.
    """
    _, advance = make_walk(warps * keys)
    row_bytes, scale_words, groups = row_bytes_of(kv_format, True), scale_words_of(kv_format, keys), kv_format.groups
    stage_bytes, scale_bytes = stage_bytes_of(kv_format, keys, True), scale_bytes_of(kv_format, keys)
    aim, (scales_of, _) = make_aim(block_size, keys, warps), make_scale_places(kv_format, keys, stages, True)
    ring_bytes = ring_bytes_of(kv_format, keys, stages, True)
    barriers_at = ring_bytes - BARRIER_BYTES * stages
    clear_scales, run, rows_a_line = make_clear_scales(kv_format, keys), run_of(block_size, keys), LINE_BYTES // row_bytes
    row_chunks, row_words, place_fields = row_bytes // 16, row_bytes // 4, place_fields_of(block_size, keys)
    runs, run_bytes, run_scale_bytes = keys // run, run * row_bytes, scale_bytes // 2 // (keys // run)

    @cuda.jit(device=True)
    def filled(ring, stage):
        """The mbarrier that says when a stage is filled; the next one says when it is free."""
        return uint32(ring + barriers_at + uint32(stage - ring) // uint32(stage_bytes) * uint32(BARRIER_BYTES))

    @cuda.jit(device=True)
    def setup(ring, lane):
        """Make the mbarriers of a warp's ring."""
        if lane == 0:
            for i in range(stages):
                mbarrier_init(uint32(ring + barriers_at + BARRIER_BYTES * i), 1)
                mbarrier_init(uint32(ring + barriers_at + BARRIER_BYTES * i + 8), 1)
            fence_mbarrier_init()

    @cuda.jit(device=True)
    def copy_tile(place, head, kv_heads, cache, ring, stage):
        """Start copying a warp's tile to a stage. Runs of which no key is visible are left out."""
        key_map, value_map, key_scales, value_scales, _ = cache
        barrier, scales, visible = filled(ring, stage), scales_of(ring, stage), int32(0)
        for i in range(runs):
            at = int32(place[POSITION] + i * run)
            if at < place[STOP] and int32(at + run) > place[START]:
                visible = int32(visible + 1)
        mbarrier_arrive_expect_tx(barrier, uint32(visible * (2 * (run_bytes + run_scale_bytes))))
        for i in range(runs):
            at = int32(place[POSITION] + i * run)
            if at < place[STOP] and int32(at + run) > place[START]:
                slot = uint32(uint32(at) % uint32(block_size))
                block_head = uint32(uint32(place[BLOCKS + i]) * kv_heads + head)
                row = uint32(block_head * uint32(block_size) + slot)  # of [num_blocks, kv_heads, block_size]
                to, line = uint32(stage + i * run_bytes), uint32(row // uint32(rows_a_line))
                cp_async_bulk_tensor_2d_shared_global(to, key_map, 0, line, barrier)
                cp_async_bulk_tensor_2d_shared_global(uint32(to + keys * row_bytes), value_map, 0, line, barrier)
                if scale_words > 0:
                    index, to = int64(row) * (2 * groups), uint32(scales + i * run_scale_bytes)
                    cp_async_bulk_shared_global(to, key_scales, index, run_scale_bytes, barrier)
                    cp_async_bulk_shared_global(uint32(to + 4 * scale_words), value_scales, index, run_scale_bytes, barrier)

    @cuda.jit(device=True)
    def produce(cursor, heads, batch, cache, ring_start, lane):
        """What the producer does: have all tiles from the cursor on copied, as stages become free."""
        place = cuda.local.array(place_fields, int32)
        place[PLACE_SEQUENCE] = -1
        aim(cursor, place, batch, cache[4], lane)
        ring, kv_heads = uint32(ring_start + lane * ring_bytes), uint32(quotient(heads, head_tiles))
        stage, parity = ring, uint32(1)  # all stages are free at first
        while cursor[LEFT] > 0:
            if lane < warps:
                mbarrier_wait_parity(uint32(filled(ring, stage) + 8), parity)
                copy_tile(place, uint32(quotient(cursor[HEAD], head_tiles)), kv_heads, cache, ring, stage)
            cuda.syncwarp()
            advance(cursor, 1, heads, batch)
            aim(cursor, place, batch, cache[4], lane)
            stage = uint32(stage + stage_bytes)
            if stage == uint32(ring + stages * stage_bytes):
                stage, parity = ring, uint32(parity ^ 1)

    @cuda.jit(device=True)
    def clear_rows(rings, word, first, count, lane):
        """Zeros for `count` rows of K and of V from row `first` on of a stage that begins at this word."""
        for row in range(first, first + count):
            if lane < row_words:
                line = quotient(row, rows_a_line)
                chunk = int32((row - line * rows_a_line) * row_chunks + lane // 4) ^ int32(line % 8)
                at = uint32(word + line * (LINE_BYTES // 4) + chunk * 4 + lane % 4)
                rings[at] = uint32(0)
                rings[uint32(at + keys * row_words)] = uint32(0)

    @cuda.jit(device=True)
    def wait(rings, ring_start, ring, stage, scale_word, parity, position, start, stop, at_edge, lane):
        """Wait for the tile of a stage, whose first key is at `position`, and, at an edge, clear rows and scales outside of start to stop.

        rings: the block's shared memory as words, which begins at the shared address ring_start. scale_word: see scale_word_of.
        """
        mbarrier_wait_parity(filled(ring, stage), parity)
        if at_edge:
            word = uint32((stage - ring_start) // 4)
            before, seen = min(keys, max(0, start - position)), min(keys, max(0, stop - position))
            clear_rows(rings, word, 0, before, lane)
            clear_rows(rings, word, seen, keys - seen, lane)
            if scale_words > 0:
                clear_scales(rings, scale_word, position, start, stop, lane)
            fence_proxy_async()  # before the copies that fill the stage again
        cuda.syncwarp()

    @cuda.jit(device=True)
    def release(ring, stage, lane):
        """All lanes have read a stage: it may be filled again."""
        cuda.syncwarp()
        if lane == 0:
            mbarrier_arrive(uint32(filled(ring, stage) + 8))

    return setup, produce, wait, release
