"""A warp's own ring of quantised keys and values in shared memory.

A stage holds the codes of `keys` keys and those of the same values. Behind the codes of all stages lie the scales of integers, those of a
stage's keys and then of its values, a word of two float16 (scale, zero) for each key and group. Keys by channel have as many words, where
their tokens' would be: a tile is a group of tokens, and as long as a group of channels. Codes travel as they lie in memory, so that a ring
of the same bytes holds two or four times as many keys. For cp.async, a row of codes is padded to an odd number of 16-byte chunks, so that
the eight rows of an ldmatrix tile lie in different banks; TMA swizzles instead (tma_ring.py).

Codes that must not be seen are filled with zeros and not read. Scales come in chunks of four words, which may reach over the edge of a
context into slots that nothing was written to: such words are cleared once they have arrived.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from numba import cuda, int32, int64, uint32

from minllm.kernels.attention.split_tensor_core.plan import quotient
from minllm.kernels.attention.split_tensor_core.walk import Source
from minllm.kernels.quantization.formats import KvFormat
from minllm.ptx import (
    cp_async_16,
    cp_async_16_narrow,
    cp_async_commit_group,
    cp_async_wait_group_1,
    cp_async_wait_group_2,
    cp_async_wait_group_3,
)

WAIT_FOR_OLDEST = {2: cp_async_wait_group_1, 3: cp_async_wait_group_2, 4: cp_async_wait_group_3}  # by stages
LINE_BYTES = 128  # of L2
BARRIER_BYTES = 16  # two mbarriers per stage
SWIZZLE_BYTES = 1024  # after which TMA's swizzle repeats


class CodeCache(NamedTuple):
    """A quantised cache; for TMA, keys and values are tensor maps."""

    keys: Any  # codes [num_blocks, kv_heads, block_size, code_bytes]
    values: Any
    key_scales: Any
    value_scales: Any


class Ahead(NamedTuple):
    """The tile that is copied next: no copy waits for a block table, because ring.blocks has been looked up one tile ahead."""

    cursor: Any
    sequence: int  # to which start and stop belong
    start: int  # the visible keys
    stop: int
    position: int  # of the first key of this warp's part of the tile


@dataclass(frozen=True)
class CodeLayout:
    """How a warp's ring lies in shared memory."""

    kv_format: KvFormat
    keys: int  # of a tile
    stages: int
    tma: bool

    @property
    def chunks(self):
        """Chunks of 16 bytes in a head's codes."""
        return self.kv_format.code_bytes // 16

    @property
    def row_bytes(self):
        """Bytes from one row of codes to the next."""
        return self.kv_format.code_bytes if self.tma else 16 * (self.chunks | 1)

    @property
    def stage_bytes(self):
        """Bytes of the codes of a stage: `keys` rows of K and of V."""
        return 2 * self.keys * self.row_bytes

    @property
    def scale_words(self):
        """Words of the scales of a stage's keys, and as many of its values."""
        return 0 if self.kv_format.is_float else self.keys * self.kv_format.groups

    @property
    def barriers_at(self):
        """Where the mbarriers of TMA lie: behind codes and scales."""
        return self.stages * (self.stage_bytes + 8 * self.scale_words)

    @property
    def ring_bytes(self):
        """Bytes of a warp's ring; for TMA, a ring begins where the swizzle does."""
        whole = self.barriers_at + BARRIER_BYTES * self.stages
        return -(-whole // SWIZZLE_BYTES) * SWIZZLE_BYTES if self.tma else self.barriers_at


def run_of(block_size, keys):
    """How many keys of a warp's tile, from its first on, certainly lie in one block of the cache; so do as many that follow, and so on."""
    return math.gcd(block_size, keys)


@functools.cache
def make_look_up(block_size, keys, warps, visible_keys):
    """(aim, look_up): what stands ahead at a cursor, and the blocks that hold it in ring.blocks."""
    run = run_of(block_size, keys)
    runs = keys // run

    @cuda.jit(device=True)
    def look_up(cursor, ahead, batch, ring):
        """Ahead at the cursor, if any tile is left."""
        sequence, start, stop, position = ahead.sequence, ahead.start, ahead.stop, ahead.position
        if cursor.left > 0:
            if sequence != cursor.sequence:
                sequence = cursor.sequence
                start, stop = visible_keys(sequence, batch)
            position = int32((cursor.first + cursor.tile) * (warps * keys) + ring.warp * keys)
            block_table, last = batch.block_tables[uint32(sequence)], int32(stop - 1)
            for i in range(runs):
                at = max(start, min(int32(position + i * run), last))
                ring.blocks[i] = block_table[uint32(at) // uint32(block_size)]
        return Ahead(cursor, sequence, start, stop, position)

    @cuda.jit(device=True)
    def aim(cursor, batch, ring):
        """Ahead at the first tile."""
        return look_up(cursor, Ahead(cursor, int32(-1), int32(0), int32(0), int32(0)), batch, ring)

    return aim, look_up


@functools.cache
def make_scale_places(layout):
    """(scales_of, scale_word_of): the shared address of the scales of ring.free, and the first word of those of ring.stage in
    ring.words."""
    stage_bytes, scale_bytes, codes_bytes = layout.stage_bytes, 8 * layout.scale_words, layout.stages * layout.stage_bytes
    first_word, scale_words, ring_words = codes_bytes // 4, scale_bytes // 4, layout.ring_bytes // 4

    @cuda.jit(device=True)
    def scales_of(ring):
        return uint32(ring.base + codes_bytes + uint32(ring.free - ring.base) // uint32(stage_bytes) * uint32(scale_bytes))

    @cuda.jit(device=True)
    def scale_word_of(ring):
        stage = uint32(ring.stage - ring.base) // uint32(stage_bytes)
        return uint32(uint32(ring.warp) * uint32(ring_words) + first_word + stage * uint32(scale_words))

    return scales_of, scale_word_of


@functools.cache
def make_clear_scales(layout):
    """clear_scales(ring, position, visible): zeros for scales of keys that are not visible; for those of channels if no key of the tile
    is."""
    keys, groups, scale_words, by_channel = layout.keys, layout.kv_format.groups, layout.scale_words, layout.kv_format.keys_by_channel
    _, scale_word_of = make_scale_places(layout)

    @cuda.jit(device=True)
    def clear_scales(ring, position, visible):
        start, stop = visible
        scale_word = scale_word_of(ring)
        unseen = stop <= position or position + keys <= start
        for i in range(-(-scale_words // 32)):
            word = int32(ring.lane + 32 * i)
            at = int32(position + quotient(word, groups))
            if word < scale_words and (at < start or at >= stop):
                if not by_channel or unseen:
                    ring.words[uint32(scale_word + word)] = uint32(0)
                ring.words[uint32(scale_word + scale_words + word)] = uint32(0)

    return clear_scales


@functools.cache
def make_row_copies(layout, block_size):
    """copy_rows(cache, bases, ahead, ring): start copying codes of K and V. bases: where in the cache the codes of each run's first key
    lie.

    The keys of a head lie side by side in a block: all but a lane's first copy go to and come from constant distances.
    """
    keys, code_bytes, row_bytes, chunks = layout.keys, layout.kv_format.code_bytes, layout.row_bytes, layout.chunks
    copies = -(-keys * chunks // 32)  # per lane
    whole, level = keys * chunks % 32 == 0, 32 % chunks == 0  # all lanes copy every time; 32 lanes copy whole rows
    run = run_of(block_size, keys)
    run_chunks, pick = run * chunks, make_pick(keys // run)
    together = run_chunks % 32 == 0  # all lanes copy from one run at a time
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
    """pick(numbers, i): numbers[i] of a local array of `runs`, without addressing it."""

    @cuda.jit(device=True)
    def pick(numbers, i):
        found = numbers[0]
        for j in range(1, runs):
            if i == j:
                found = numbers[j]
        return found

    return pick


@functools.cache
def make_cp_async_source(layout, block_size, head_tiles, warps, plan):
    """Codes by cp.async; head_tiles: heads of the line per KV head."""
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
        """Start copying scales of K and V, four words per lane. bases: where each run's first key has its words."""
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
        """Start copying a tile, if any is left, and look up the next one: always one group of copies."""
        if ahead.cursor.left > 0:
            kv_heads, head = uint32(quotient(batch.line_heads, head_tiles)), uint32(quotient(ahead.cursor.head, head_tiles))
            code_bases, scale_bases = cuda.local.array(runs, int64), cuda.local.array(runs, int64)
            for i in range(runs):
                slot = uint32(uint32(ahead.position + i * run) % uint32(block_size))
                block_rows = int64(uint32(ring.blocks[i])) * int64(uint32(kv_heads * block_size))
                row = block_rows + int64(uint32(head * block_size + slot))  # of [num_blocks, kv_heads, block_size]
                code_bases[i], scale_bases[i] = row * code_bytes, row * groups
            copy_rows(cache, code_bases, ahead, ring)
            if scale_words > 0:
                copy_scales(cache, scale_bases, ahead, ring)
            ahead = look_up(advance(ahead.cursor, 1, batch), ahead, batch, ring)
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
        """All lanes have read the stage, which is filled next."""
        cuda.syncwarp()

    return Source(setup, aim, fetch, wait, release, layout.stage_bytes, layout.ring_bytes, lookups=runs)
