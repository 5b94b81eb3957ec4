"""Shared by both rings of codes (cp_async_ring.py, tma_ring.py): looking up the next tile, and clearing scales.

Scales are copied in chunks of four words, which may extend over the edge of a context into slots that were never written: such words are
cleared after they have arrived.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, int32, uint32

from minllm.kernels.attention.split_quantized.layout import make_scale_places, run_of
from minllm.kernels.attention.split_tensor_core.plan import quotient


class Ahead(NamedTuple):
    """The tile that is copied next. Its blocks (cache.blocks) are looked up one tile ahead, so that no copy waits for a block table."""

    cursor: Any
    sequence: int  # the sequence of start and stop
    start: int  # the first visible key
    stop: int  # one past the last visible key
    position: int  # position of the first key of this warp's part of the tile


@functools.cache
def make_look_up(block_size, keys, warps, visible_keys):
    """(aim, look_up): device functions that return the Ahead for a cursor, and write its blocks to cache.blocks."""
    run = run_of(block_size, keys)
    runs = keys // run

    @cuda.jit(device=True)
    def look_up(cursor, ahead, batch, ring, cache):
        """The Ahead at the cursor; looks up its blocks if any tile is left."""
        sequence, start, stop, position = ahead.sequence, ahead.start, ahead.stop, ahead.position
        if cursor.left > 0:
            if sequence != cursor.sequence:
                sequence = cursor.sequence
                start, stop = visible_keys(sequence, batch)
            position = int32((cursor.first + cursor.tile) * (warps * keys) + ring.warp * keys)
            block_table, last = batch.block_tables[uint32(sequence)], int32(stop - 1)
            for i in range(runs):
                at = max(start, min(int32(position + i * run), last))
                cache.blocks[i] = block_table[uint32(at) // uint32(block_size)]
        return Ahead(cursor, sequence, start, stop, position)

    @cuda.jit(device=True)
    def aim(cursor, batch, ring, cache):
        """The Ahead at the first tile."""
        return look_up(cursor, Ahead(cursor, int32(-1), int32(0), int32(0), int32(0)), batch, ring, cache)

    return aim, look_up


@functools.cache
def make_clear_scales(layout):
    """clear_scales(ring, position, visible): clear the scales of keys that are not visible; those of channels only if no key of the tile is
    visible."""
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
