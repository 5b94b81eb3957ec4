"""Fills the rings of layout.py by cp.async: lanes copy chunks of 16 bytes; codes that must not be seen are not read."""

import functools

from numba import cuda, int32, int64, uint32

from minllm.kernels.attention.split_quantized.layout import LINE_BYTES, make_scale_places, run_of
from minllm.kernels.attention.split_quantized.ring import make_clear_scales, make_look_up
from minllm.kernels.attention.split_tensor_core.plan import quotient
from minllm.kernels.attention.split_tensor_core.tile_loop import Source
from minllm.ptx import (
    cp_async_16,
    cp_async_16_narrow,
    cp_async_commit_group,
    cp_async_wait_group_1,
    cp_async_wait_group_2,
    cp_async_wait_group_3,
)

WAIT_FOR_OLDEST = {2: cp_async_wait_group_1, 3: cp_async_wait_group_2, 4: cp_async_wait_group_3}  # by number of stages


@functools.cache
def make_row_copies(layout, block_size):
    """copy_rows(cache, bases, ahead, ring): start copying codes of K and V. bases: index in the cache of the codes of each run's first key.

    The keys of a head are contiguous in a block, so the source and destination of a lane's copies are at constant distances.
    """
    keys, code_bytes, row_bytes, chunks = layout.keys, layout.kv_format.code_bytes, layout.row_bytes, layout.chunks
    copies = -(-keys * chunks // 32)  # per lane
    whole, level = keys * chunks % 32 == 0, 32 % chunks == 0  # whether all lanes copy every time; whether 32 lanes copy whole rows
    run = run_of(block_size, keys)
    run_chunks, pick = run * chunks, make_pick(keys // run)
    together = run_chunks % 32 == 0  # whether all lanes copy from the same run at a time
    copy_codes = cp_async_16 if run * code_bytes % LINE_BYTES == 0 else cp_async_16_narrow

    @cuda.jit(device=True)
    def copy_rows(cache, bases, ahead, ring):
        lane = ring.lane
        visible, first = uint32(ahead.stop - ahead.start), uint32(ahead.position - ahead.start)
        lane_row, lane_column = quotient(lane, chunks), int32(uint32(lane) % uint32(chunks))
        lane_to = uint32(ring.free + lane_row * row_bytes + lane_column * 16)
        for i in range(copies):
            chunk = uint32(lane + 32 * i)
            row = uint32(lane_row + i * (32 // chunks)) if level else uint32(chunk // uint32(chunks))
            if together:
                element = bases[32 * i // run_chunks] + int64(16 * lane) + (32 * i % run_chunks * 16)
            else:
                of_run = chunk // uint32(run_chunks)
                element = pick(bases, of_run) + int64(uint32(16 * (chunk - of_run * run_chunks)))
            valid = 16 if uint32(first + row) < visible else 0
            to = uint32(lane_to + i * (32 // chunks) * row_bytes)
            if not level:
                to = uint32(ring.free + row * row_bytes + (chunk - row * chunks) * 16)
            if whole or row < keys:
                copy_codes(to, cache.keys, element, valid)
                copy_codes(uint32(to + keys * row_bytes), cache.values, element, valid)

    return copy_rows


@functools.cache
def make_pick(runs):
    """pick(numbers, i): numbers[i] of a local array of length `runs`, without indexing, so that it stays in registers."""

    @cuda.jit(device=True)
    def pick(numbers, i):
        found = numbers[0]
        for j in range(1, runs):
            if i == j:
                found = numbers[j]
        return found

    return pick


@functools.cache
def make_source(layout, block_size, head_tiles, warps, plan):
    """(Source that loads codes by cp.async, aim, None: no producer warp); head_tiles: heads of the line per KV head."""
    keys, code_bytes, groups = layout.keys, layout.kv_format.code_bytes, layout.kv_format.groups
    scale_words, by_channel = layout.scale_words, layout.kv_format.keys_by_channel
    scale_copies = -(-scale_words // 4 // 32)  # per lane
    run, runs = run_of(block_size, keys), keys // run_of(block_size, keys)
    run_words, pick, copy_rows = run * groups, make_pick(runs), make_row_copies(layout, block_size)
    wait_for_oldest, clear_scales, advance = WAIT_FOR_OLDEST[layout.stages], make_clear_scales(layout), plan.advance
    (aim, look_up), (scales_of, _) = make_look_up(block_size, keys, warps, plan.visible_keys), make_scale_places(layout)

    @cuda.jit(device=True)
    def setup(ring):
        """cp.async needs no preparation."""

    @cuda.jit(device=True)
    def copy_scales(cache, bases, ahead, ring):
        """Start copying scales of K and V, four words per lane. bases: index of the words of each run's first key."""
        scales = scales_of(ring)
        for i in range(scale_copies):
            word = uint32(4 * (ring.lane + 32 * i))
            if word < scale_words:
                at = int32(ahead.position + word // uint32(groups))
                last = int32(ahead.position + uint32(word + 3) // uint32(groups))
                of_run = word // uint32(run_words)
                element = 2 * (pick(bases, of_run) + int64(uint32(word - of_run * run_words)))
                valid = 16 if ahead.start <= last and at < ahead.stop else 0
                to = uint32(scales + 4 * word)
                cp_async_16(uint32(to + 4 * scale_words), cache.value_scales, element, valid)
                if by_channel:
                    valid = 16 if ahead.start < ahead.position + keys and ahead.position < ahead.stop else 0
                cp_async_16(to, cache.key_scales, element, valid)

    @cuda.jit(device=True)
    def fetch(ahead, ring, batch, cache):
        """Start copying a tile, if any is left, and look up the next one; always commits one group of copies."""
        if ahead.cursor.left > 0:
            kv_heads, head = uint32(quotient(batch.line_heads, head_tiles)), uint32(quotient(ahead.cursor.head, head_tiles))
            code_bases, scale_bases = cuda.local.array(runs, int64), cuda.local.array(runs, int64)
            for i in range(runs):
                slot = uint32(uint32(ahead.position + i * run) % uint32(block_size))
                block_rows = int64(uint32(cache.blocks[i])) * int64(uint32(kv_heads * block_size))
                row = block_rows + int64(uint32(head * block_size + slot))  # row of [num_blocks, kv_heads, block_size]
                code_bases[i], scale_bases[i] = row * code_bytes, row * groups
            copy_rows(cache, code_bases, ahead, ring)
            if scale_words > 0:
                copy_scales(cache, scale_bases, ahead, ring)
            ahead = look_up(advance(ahead.cursor, 1, batch), ahead, batch, ring, cache)
        cp_async_commit_group()
        return ahead

    @cuda.jit(device=True)
    def wait(ring, position, visible):
        """Wait for the oldest tile and, at an edge of the context, clear scales."""
        start, stop = visible
        wait_for_oldest()
        cuda.syncwarp()
        if scale_words > 0:
            if position < start or int32(position + keys) > stop:
                clear_scales(ring, position, visible)
                cuda.syncwarp()

    @cuda.jit(device=True)
    def release(ring):
        """Wait until all lanes have read the stage, which is filled next."""
        cuda.syncwarp()

    return Source(setup, fetch, wait, release, layout.stage_bytes, layout.ring_bytes), aim, None
