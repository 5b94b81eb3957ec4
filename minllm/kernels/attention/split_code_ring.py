"""A warp's own ring of quantised keys and values in shared memory, filled by cp.async: split_ring.py for codes and their scales.

A stage holds the codes of KEYS keys, those of the same values, and for integers the scales of the keys and of the values, a word of two
float16 (scale, zero) for each key and group. Nothing is converted on the way: codes travel as they lie, so that a ring of the same
bytes holds two or four times as many keys. A row of codes is padded to an odd number of 16-byte chunks, so that the eight rows of an
ldmatrix tile lie in different banks.

Codes that must not be seen are filled with zeros and not read. Scales come in chunks of four words, which may reach over the edge of a
context into slots that nobody has written: such words are cleared once they have arrived.

`batch` and cursors: split_plan.py. `cache` is the tuple (key_codes, value_codes, key_scales, value_scales, block_tables).
"""

import functools

from numba import cuda, int32, int64, uint32

from minllm.kernels.attention.paged_cache import make_lookup
from minllm.kernels.attention.split_plan import FIRST, HEAD, LEFT, SEQUENCE, TILE, make_walk, quotient, visible_keys
from minllm.kernels.attention.split_ring import WAIT_FOR_OLDEST
from minllm.ptx import cp_async_16, cp_async_16_narrow, cp_async_commit_group

LINE_BYTES = 128  # of L2


def chunks_of(kv_format):
    """Chunks of 16 bytes in a head's codes."""
    return kv_format.code_bytes // 16


def row_bytes_of(kv_format):
    """Bytes from one row of codes to the next in shared memory."""
    return 16 * (chunks_of(kv_format) | 1)


def scale_words_of(kv_format, keys):
    """Words of scales of `keys` keys in shared memory."""
    return 0 if kv_format.is_float else keys * kv_format.groups


def stage_bytes_of(kv_format, keys):
    """Bytes of a stage: `keys` rows of codes of K and of V, and their scales."""
    return 2 * (keys * row_bytes_of(kv_format) + 4 * scale_words_of(kv_format, keys))


@functools.cache
def make_code_ring(kv_format, block_size, head_tiles, keys, warps, stages):
    """(fetch, wait): device functions for a warp's ring, which begins at the shared address `ring`.

    head_tiles: heads of the line for each KV head.
    """
    block_of, element_of = make_lookup(block_size)
    _, advance = make_walk(warps * keys)
    code_bytes, row_bytes, chunks = kv_format.code_bytes, row_bytes_of(kv_format), chunks_of(kv_format)
    groups, scale_words = kv_format.groups, scale_words_of(kv_format, keys)
    copies, scale_copies = -(-keys * chunks // 32), -(-scale_words // 4 // 32)  # of a lane
    whole = keys * chunks % 32 == 0
    in_one_block = block_size % keys == 0  # a warp's rows lie in one block of the cache
    copy_codes = cp_async_16 if code_bytes % LINE_BYTES == 0 else cp_async_16_narrow
    wait_for_oldest = WAIT_FOR_OLDEST[stages]
    scales_at = 2 * keys * row_bytes

    @cuda.jit(device=True)
    def copy_code_rows(cache, block_table, block, position, head, start, stop, lane, stage):
        """Start copying codes of K and V; block: of all rows, if one holds them all."""
        key_codes, value_codes, _, _, _ = cache
        key_stride = int32(int32(key_codes.shape[2]) * code_bytes)
        for i in range(copies):
            row = quotient(lane + 32 * i, chunks)
            column = int32((lane + 32 * i - row * chunks) * 16)
            at = int32(position + row)
            if not in_one_block:
                block = block_of(block_table, max(start, min(at, stop - 1)))
            inside = start <= at and at < stop
            index = element_of(block, at, key_stride, int32(head * code_bytes + column)) if inside else int64(0)
            to = uint32(stage + row * row_bytes + column)
            if whole or row < keys:
                copy_codes(to, key_codes, index, 16 if inside else 0)
                copy_codes(uint32(to + keys * row_bytes), value_codes, index, 16 if inside else 0)

    @cuda.jit(device=True)
    def copy_scales(cache, block_table, block, position, head, start, stop, lane, stage):
        """Start copying scales of K and V, four words a lane; they lie in one block, whose size is a multiple of four keys."""
        key_codes, _, key_scales, value_scales, _ = cache
        for i in range(scale_copies):
            word = int32(4 * (lane + 32 * i))
            at = int32(position + quotient(word, groups))
            last = int32(position + quotient(word + 3, groups))
            if not in_one_block:
                block = block_of(block_table, max(start, min(at, stop - 1)))
            if word < scale_words:
                inside = start <= last and at < stop
                slot = int32(uint32(at) % uint32(block_size))
                row = int64(block) * int64(key_codes.shape[2]) + head  # [num_blocks, kv_heads]
                words = int32(slot * groups + word - quotient(word, groups) * groups)
                index = 2 * (row * (block_size * groups) + words) if inside else int64(0)
                to = uint32(stage + scales_at + 4 * word)
                cp_async_16(to, key_scales, index, 16 if inside else 0)
                cp_async_16(uint32(to + 4 * scale_words), value_scales, index, 16 if inside else 0)

    @cuda.jit(device=True)
    def copy_tile(cursor, batch, cache, warp, lane, stage):
        """Start copying this warp's rows of the cursor's tile to the stage at this shared address."""
        start, stop = visible_keys(cursor[SEQUENCE], batch)
        position = int32((cursor[FIRST] + cursor[TILE]) * (warps * keys) + warp * keys)  # of the warp's first row
        block_table = cache[4][uint32(cursor[SEQUENCE])]
        head = quotient(cursor[HEAD], head_tiles)
        block = int32(0)
        if in_one_block:
            block = block_of(block_table, max(start, min(position, stop - 1)))
        copy_code_rows(cache, block_table, block, position, head, start, stop, lane, stage)
        if scale_words > 0:
            copy_scales(cache, block_table, block, position, head, start, stop, lane, stage)

    @cuda.jit(device=True)
    def fetch(cursor, heads, batch, cache, warp, lane, stage):
        """Start copying the cursor's tile, if any is left, and go on to the next: always one group of copies."""
        if cursor[LEFT] > 0:
            copy_tile(cursor, batch, cache, warp, lane, stage)
            advance(cursor, 1, heads, batch)
        cp_async_commit_group()

    @cuda.jit(device=True)
    def wait(rings, stage_word, position, start, stop, lane):
        """Wait for the oldest tile, whose first key is at `position`, and clear scales outside of start to stop.

        rings: the block's shared memory as words; stage_word: where in it the stage begins.
        """
        wait_for_oldest()
        cuda.syncwarp()
        if scale_words > 0:
            if position < start or position + keys > stop:
                word = int32(lane)
                while word < scale_words:
                    at = int32(position + quotient(word, groups))
                    if at < start or at >= stop:
                        rings[uint32(stage_word + scales_at // 4 + word)] = uint32(0)
                        rings[uint32(stage_word + scales_at // 4 + scale_words + word)] = uint32(0)
                    word = int32(word + 32)
                cuda.syncwarp()

    return fetch, wait
