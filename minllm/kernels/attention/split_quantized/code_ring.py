"""A warp's own ring of quantised keys and values in shared memory, filled by cp.async.

A stage holds the codes of KEYS keys and those of the same values. Behind the stages of codes lie as many for integers' scales, those of
the keys and then of the values, a word of two float16 (scale, zero) for each key and group. Keys by channel have as many words, in the
place in memory where their tokens' would be: a tile is a group of tokens, and as long as a group of channels. Nothing is converted on the
way: codes travel as they lie, so that a ring of the same bytes holds two or four times as many keys. A row of codes is padded to an odd
number of 16-byte chunks, so that the eight rows of an ldmatrix tile lie in different banks.

Codes that must not be seen are filled with zeros and not read. Scales come in chunks of four words, which may reach over the edge of a
context into slots that nobody has written: such words are cleared once they have arrived.

`batch` and cursors: split_tensor_core/plan.py. `cache` is the tuple (key_codes, value_codes, key_scales, value_scales, block_tables).
"""

import functools
import math

from numba import cuda, int32, int64, uint32

from minllm.kernels.attention.split_tensor_core.plan import FIRST, HEAD, LEFT, SEQUENCE, TILE, make_walk, quotient, visible_keys
from minllm.kernels.attention.split_tensor_core.ring import WAIT_FOR_OLDEST
from minllm.ptx import cp_async_16, cp_async_16_narrow, cp_async_commit_group

LINE_BYTES = 128  # of L2
BARRIER_BYTES = 16  # of a stage: two mbarriers
SWIZZLE_BYTES = 1024  # after which the copy engine's swizzle repeats
# Fields of a place: a sequence, its first visible key and one past the last, the position of a warp's tile, the blocks of its runs.
PLACE_SEQUENCE, START, STOP, POSITION, BLOCKS = range(5)


def chunks_of(kv_format):
    """Chunks of 16 bytes in a head's codes."""
    return kv_format.code_bytes // 16


def row_bytes_of(kv_format, by_engine=False):
    """Bytes from one row of codes to the next in shared memory."""
    return kv_format.code_bytes if by_engine else 16 * (chunks_of(kv_format) | 1)


def run_of(block_size, keys):
    """How many keys of a warp's tile, from its first on, certainly lie in one block of the cache; so do as many that follow, and so on."""
    return math.gcd(block_size, keys)


def place_fields_of(block_size, keys):
    """int32 of a place."""
    return BLOCKS + keys // run_of(block_size, keys)


def scale_words_of(kv_format, keys):
    """Words of scales of `keys` keys in shared memory."""
    return 0 if kv_format.is_float else keys * kv_format.groups


def scale_bytes_of(kv_format, keys):
    """Bytes of the scales of a stage."""
    return 8 * scale_words_of(kv_format, keys)


def stage_bytes_of(kv_format, keys, by_engine=False):
    """Bytes of the codes of a stage: `keys` rows of K and of V."""
    return 2 * keys * row_bytes_of(kv_format, by_engine)


def ring_bytes_of(kv_format, keys, stages, by_engine=False):
    """Bytes of a warp's ring; the copy engine's rings end with their mbarriers, and begin where its swizzle does."""
    byte_count = stages * (stage_bytes_of(kv_format, keys, by_engine) + scale_bytes_of(kv_format, keys))
    return -(-(byte_count + BARRIER_BYTES * stages) // SWIZZLE_BYTES) * SWIZZLE_BYTES if by_engine else byte_count


@functools.cache
def make_aim(block_size, keys, warps):
    """aim(cursor, place, batch, block_tables, warp): look up where the warp's part of the cursor's tile lies, if any is left."""
    run = run_of(block_size, keys)
    runs = keys // run

    @cuda.jit(device=True)
    def aim(cursor, place, batch, block_tables, warp):
        if cursor[LEFT] > 0:
            if place[PLACE_SEQUENCE] != cursor[SEQUENCE]:
                place[PLACE_SEQUENCE] = cursor[SEQUENCE]
                place[START], place[STOP] = visible_keys(cursor[SEQUENCE], batch)
            place[POSITION] = int32((cursor[FIRST] + cursor[TILE]) * (warps * keys) + warp * keys)  # of the warp's first row
            block_table, last = block_tables[uint32(cursor[SEQUENCE])], int32(place[STOP] - 1)
            for i in range(runs):
                at = max(place[START], min(int32(place[POSITION] + i * run), last))
                place[BLOCKS + i] = block_table[uint32(at) // uint32(block_size)]

    return aim


@functools.cache
def make_scale_places(kv_format, keys, stages, by_engine=False):
    """(scales_of, scale_word_of): where the scales lie that belong to a stage. scales_of(ring, stage): their shared address.
    scale_word_of(warp, ring, stage): their first word in the block's shared memory."""
    stage_bytes, scale_bytes = stage_bytes_of(kv_format, keys, by_engine), scale_bytes_of(kv_format, keys)
    first_word, scale_words = stages * stage_bytes // 4, scale_bytes // 4
    ring_words = ring_bytes_of(kv_format, keys, stages, by_engine) // 4

    @cuda.jit(device=True)
    def scales_of(ring, stage):
        return uint32(ring + stages * stage_bytes + uint32(stage - ring) // uint32(stage_bytes) * uint32(scale_bytes))

    @cuda.jit(device=True)
    def scale_word_of(warp, ring, stage):
        return uint32(uint32(warp) * uint32(ring_words) + first_word + uint32(stage - ring) // uint32(stage_bytes) * uint32(scale_words))

    return scales_of, scale_word_of


@functools.cache
def make_clear_scales(kv_format, keys):
    """clear_scales(rings, scale_word, position, start, stop, lane): zeros for scales of keys outside of start to stop; for those of
    channels where a whole tile is."""
    groups, scale_words, by_channel = kv_format.groups, scale_words_of(kv_format, keys), kv_format.keys_by_channel

    @cuda.jit(device=True)
    def clear_scales(rings, scale_word, position, start, stop, lane):
        unseen = stop <= position or position + keys <= start
        for i in range(-(-scale_words // 32)):
            word = int32(lane + 32 * i)
            at = int32(position + quotient(word, groups))
            if word < scale_words and (at < start or at >= stop):
                if not by_channel or unseen:
                    rings[uint32(scale_word + word)] = uint32(0)
                rings[uint32(scale_word + scale_words + word)] = uint32(0)

    return clear_scales


@functools.cache
def make_code_ring(kv_format, block_size, head_tiles, keys, warps, stages):
    """(fetch, wait): device functions for a warp's ring, which begins at the shared address `ring`.

    head_tiles: heads of the line for each KV head. fetch has the tile copied that `place` was aimed at, place_fields_of(...) int32, and
    aims at the next one, so that no fetch waits for a block table. The keys of a head lie side by side in a block: all but a lane's first
    copy go to and come from constant distances.
    """
    _, advance = make_walk(warps * keys)
    code_bytes, row_bytes, chunks = kv_format.code_bytes, row_bytes_of(kv_format), chunks_of(kv_format)
    groups, scale_words, by_channel = kv_format.groups, scale_words_of(kv_format, keys), kv_format.keys_by_channel
    copies, scale_copies = -(-keys * chunks // 32), -(-scale_words // 4 // 32)  # of a lane
    whole, level = keys * chunks % 32 == 0, 32 % chunks == 0  # all lanes copy every time; and so many whole rows together
    run, runs = run_of(block_size, keys), keys // run_of(block_size, keys)
    run_chunks, run_words = run * chunks, run * groups
    together = run_chunks % 32 == 0  # all lanes copy from one run at a time
    copy_codes = cp_async_16 if run * code_bytes % LINE_BYTES == 0 else cp_async_16_narrow
    wait_for_oldest, clear_scales = WAIT_FOR_OLDEST[stages], make_clear_scales(kv_format, keys)
    aim, (scales_of, _) = make_aim(block_size, keys, warps), make_scale_places(kv_format, keys, stages)

    @cuda.jit(device=True)
    def pick(numbers, run_index):
        """numbers[run_index] of a local array, without addressing it."""
        found = numbers[0]
        for i in range(1, runs):
            if run_index == i:
                found = numbers[i]
        return found

    @cuda.jit(device=True)
    def copy_code_rows(cache, bases, place, lane, stage):
        """Start copying codes of K and V. bases: where in the cache the head's codes of each run's first key lie."""
        key_codes, value_codes, _, _, _ = cache
        visible, first = uint32(place[STOP] - place[START]), uint32(place[POSITION] - place[START])
        lane_row, lane_column = quotient(lane, chunks), int32(uint32(lane) % uint32(chunks))
        lane_to = uint32(stage + lane_row * row_bytes + lane_column * 16)
        for i in range(copies):
            chunk = uint32(lane + 32 * i)
            row = uint32(lane_row + i * (32 // chunks)) if level else uint32(chunk // uint32(chunks))
            if together:
                index = bases[32 * i // run_chunks] + int64(16 * lane) + (32 * i % run_chunks * 16)
            else:
                run_index = chunk // uint32(run_chunks)
                index = pick(bases, run_index) + int64(uint32(16 * (chunk - run_index * run_chunks)))
            valid = 16 if uint32(first + row) < visible else 0
            to = uint32(lane_to + i * (32 // chunks) * row_bytes)
            if not level:
                to = uint32(stage + row * row_bytes + (chunk - row * chunks) * 16)
            if whole or row < keys:
                copy_codes(to, key_codes, index, valid)
                copy_codes(uint32(to + keys * row_bytes), value_codes, index, valid)

    @cuda.jit(device=True)
    def copy_scales(cache, bases, place, lane, scales):
        """Start copying scales of K and V, four words a lane. bases: where each run's first key has its words."""
        _, _, key_scales, value_scales, _ = cache
        for i in range(scale_copies):
            word = uint32(4 * (lane + 32 * i))
            if word < scale_words:
                at = int32(place[POSITION] + word // uint32(groups))
                last = int32(place[POSITION] + uint32(word + 3) // uint32(groups))
                run_index = word // uint32(run_words)
                index = 2 * (pick(bases, run_index) + int64(uint32(word - run_index * run_words)))
                valid = 16 if place[START] <= last and at < place[STOP] else 0
                to = uint32(scales + 4 * word)
                cp_async_16(uint32(to + 4 * scale_words), value_scales, index, valid)
                if by_channel:
                    valid = 16 if place[START] < place[POSITION] + keys and place[POSITION] < place[STOP] else 0
                cp_async_16(to, key_scales, index, valid)

    @cuda.jit(device=True)
    def fetch(cursor, place, heads, batch, cache, warp, lane, ring, stage):
        """Start copying the cursor's tile, if any is left, to the stage at this shared address, and go on to the next: always one group of
        copies."""
        if cursor[LEFT] > 0:
            kv_heads, head = uint32(quotient(heads, head_tiles)), uint32(quotient(cursor[HEAD], head_tiles))
            code_bases, scale_bases = cuda.local.array(runs, int64), cuda.local.array(runs, int64)
            for i in range(runs):
                slot = uint32(uint32(place[POSITION] + i * run) % uint32(block_size))
                block_rows = int64(uint32(place[BLOCKS + i])) * int64(uint32(kv_heads * block_size))
                row = block_rows + int64(uint32(head * block_size + slot))  # of [num_blocks, kv_heads, block_size]
                code_bases[i], scale_bases[i] = row * code_bytes, row * groups
            copy_code_rows(cache, code_bases, place, lane, stage)
            if scale_words > 0:
                copy_scales(cache, scale_bases, place, lane, scales_of(ring, stage))
            advance(cursor, 1, heads, batch)
            aim(cursor, place, batch, cache[4], warp)
        cp_async_commit_group()

    @cuda.jit(device=True)
    def wait(rings, ring_start, ring, stage, scale_word, parity, position, start, stop, at_edge, lane):
        """Wait for the oldest tile, whose first key is at `position`, and, at an edge, clear scales outside of start to stop.

        rings: the block's shared memory as words, which begins at the shared address ring_start. scale_word: see scale_word_of.
        """
        wait_for_oldest()
        cuda.syncwarp()
        if scale_words > 0:
            if at_edge:
                clear_scales(rings, scale_word, position, start, stop, lane)
                cuda.syncwarp()

    return fetch, wait
