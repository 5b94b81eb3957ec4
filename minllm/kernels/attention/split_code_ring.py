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
import math

from numba import cuda, int32, int64, uint32

from minllm.kernels.attention.split_plan import FIRST, HEAD, LEFT, SEQUENCE, TILE, make_walk, quotient, visible_keys
from minllm.kernels.attention.split_ring import WAIT_FOR_OLDEST
from minllm.ptx import cp_async_16, cp_async_16_narrow, cp_async_commit_group

LINE_BYTES = 128  # of L2
PLACE_SEQUENCE, START, STOP = range(3)  # fields of a place: a sequence, and its first visible key and one past the last
PLACE_FIELDS = 3


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
    """(fetch, wait): device functions for a warp's ring.

    head_tiles: heads of the line for each KV head. fetch keeps what it knows of the sequence in `place`, PLACE_FIELDS int32 that begin as
    -1: every instruction that is saved here is one more for the conversion of codes.
    """
    _, advance = make_walk(warps * keys)
    code_bytes, row_bytes, chunks = kv_format.code_bytes, row_bytes_of(kv_format), chunks_of(kv_format)
    groups, scale_words = kv_format.groups, scale_words_of(kv_format, keys)
    copies, scale_copies = -(-keys * chunks // 32), -(-scale_words // 4 // 32)  # of a lane
    whole = keys * chunks % 32 == 0
    run = math.gcd(block_size, keys)  # keys of a warp's tile that certainly lie in one block of the cache
    runs = keys // run
    rows_at_once = 32 // chunks if 32 % chunks == 0 else keys
    even = runs == 1 or run % rows_at_once == 0  # all lanes copy rows of one run at a time
    copy_codes = cp_async_16 if code_bytes % LINE_BYTES == 0 else cp_async_16_narrow
    wait_for_oldest = WAIT_FOR_OLDEST[stages]
    scales_at = 2 * keys * row_bytes

    @cuda.jit(device=True)
    def pick(numbers, run_index):
        """numbers[run_index] of a local array, without addressing it."""
        found = numbers[0]
        for i in range(1, runs):
            if run_index == i:
                found = numbers[i]
        return found

    @cuda.jit(device=True)
    def copy_code_rows(cache, bases, position, start, stop, lane, stage):
        """Start copying codes of K and V. bases: where in the cache the head's codes of each run's first key lie."""
        key_codes, value_codes, _, _, _ = cache
        key_stride = uint32(key_codes.shape[2]) * uint32(code_bytes)
        visible, first = uint32(stop - start), uint32(position - start)
        for i in range(copies):
            row = uint32(uint32(lane + 32 * i) // uint32(chunks))
            column = uint32(uint32(lane + 32 * i - row * chunks) * 16)
            within = uint32(row % uint32(run)) if runs > 1 else row
            base = bases[min(i * rows_at_once // run, runs - 1)] if even else pick(bases, row // uint32(run))
            index = int64(base) + int64(uint32(within * key_stride + column))
            valid = 16 if uint32(first + row) < visible else 0
            to = uint32(stage + row * row_bytes + column)
            if whole or row < keys:
                copy_codes(to, key_codes, index, valid)
                copy_codes(uint32(to + keys * row_bytes), value_codes, index, valid)

    @cuda.jit(device=True)
    def copy_scales(cache, bases, position, start, stop, lane, stage):
        """Start copying scales of K and V, four words a lane. bases: where each run's first key has its words."""
        _, _, key_scales, value_scales, _ = cache
        for i in range(scale_copies):
            word = uint32(4 * (lane + 32 * i))
            if word < scale_words:
                key = uint32(word // uint32(groups))
                at = int32(position + key)
                last = int32(position + uint32(word + 3) // uint32(groups))
                base = pick(bases, key // uint32(run))
                index = 2 * (int64(base) + int64(uint32(word - key // uint32(run) * (run * groups))))
                valid = 16 if start <= last and at < stop else 0
                to = uint32(stage + scales_at + 4 * word)
                cp_async_16(to, key_scales, index, valid)
                cp_async_16(uint32(to + 4 * scale_words), value_scales, index, valid)

    @cuda.jit(device=True)
    def copy_tile(cursor, place, batch, cache, warp, lane, stage):
        """Start copying this warp's rows of the cursor's tile to the stage at this shared address."""
        if place[PLACE_SEQUENCE] != cursor[SEQUENCE]:
            place[PLACE_SEQUENCE] = cursor[SEQUENCE]
            place[START], place[STOP] = visible_keys(cursor[SEQUENCE], batch)
        start, stop = place[START], place[STOP]
        position = int32((cursor[FIRST] + cursor[TILE]) * (warps * keys) + warp * keys)  # of the warp's first row
        block_table = cache[4][uint32(cursor[SEQUENCE])]
        kv_heads, head = uint32(cache[0].shape[2]), uint32(quotient(cursor[HEAD], head_tiles))
        code_bases, scale_bases = cuda.local.array(runs, int64), cuda.local.array(runs, int64)
        for i in range(runs):
            at = int32(position + i * run)
            block = int64(uint32(block_table[uint32(max(start, min(at, int32(stop - 1)))) // uint32(block_size)]))
            slot = uint32(uint32(at) % uint32(block_size))
            code_row, scale_row = uint32(slot * kv_heads + head), uint32(head * block_size + slot)  # within the block
            code_bases[i] = block * int64(uint32(kv_heads * (block_size * code_bytes))) + int64(uint32(code_row * code_bytes))
            scale_bases[i] = block * int64(uint32(kv_heads * (block_size * groups))) + int64(uint32(scale_row * groups))
        copy_code_rows(cache, code_bases, position, start, stop, lane, stage)
        if scale_words > 0:
            copy_scales(cache, scale_bases, position, start, stop, lane, stage)

    @cuda.jit(device=True)
    def fetch(cursor, place, heads, batch, cache, warp, lane, stage):
        """Start copying the cursor's tile, if any is left, and go on to the next: always one group of copies."""
        if cursor[LEFT] > 0:
            copy_tile(cursor, place, batch, cache, warp, lane, stage)
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
                for i in range(-(-scale_words // 32)):
                    word = int32(lane + 32 * i)
                    at = int32(position + quotient(word, groups))
                    if word < scale_words and (at < start or at >= stop):
                        rings[uint32(stage_word + scales_at // 4 + word)] = uint32(0)
                        rings[uint32(stage_word + scales_at // 4 + scale_words + word)] = uint32(0)
                cuda.syncwarp()

    return fetch, wait
