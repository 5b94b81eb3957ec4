"""Work items of FlashAttention-3, their assignment to blocks, and their description in shared memory.

A work item is a query tile of one head. The grid has one block per SM (a persistent kernel). Items are numbered from the longest to the
shortest, and assigned to blocks forwards in even rounds and backwards in odd ones, so that all blocks get about the same amount of work.

The order is counted on the device, since a CUDA graph serves many batches: their sequences differ in length, and some are empty. Tiles of
queries stand at levels, by the position of their first row in units of a tile, so a level's tiles see about the same number of keys, and
a sequence has at most one there. The lanes of a warp look at 32 sequences at once: one vote finds those that have a tile at a level. Items
are numbered by level, from the highest down, then by sequence, then by head, and nothing is counted that does not exist.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, int32, uint32

from minllm.tiles.warp import ALL_LANES, WARP, warp_max

WORK_WORDS = 8  # words per description
WORK_SLOTS = 4  # descriptions at a time: of the item being stored, the current one, the next, and the one after it
COUNT, STOP_TILE, FIRST_POSITION, VISIBLE_START, CONTEXT_LEN, TOKEN, HEAD, ROWS = range(WORK_WORDS)
# COUNT: tiles of keys, -1 after the last item. STOP_TILE: one past the last tile. FIRST_POSITION: position of the first query row.
# VISIBLE_START: the first key that any row sees. TOKEN: the first query row. ROWS: rows of the sequence from that row on.


class Items(NamedTuple):
    """A warp's place in the order of items: a level, and 32 sequences, one for each lane."""

    level: int  # below 0 after the last item
    first_sequence: int
    before: int  # items before those of this level and these sequences
    lowest: int  # level of the lane's sequence
    levels: int  # of the lane's sequence; 0 without rows


class Item(NamedTuple):
    """A query tile of a head."""

    sequence: int  # -1 after the last item
    head: int
    first_row: int  # of the tile in its sequence


class ItemOrder(NamedTuple):
    """Device functions that all lanes of a warp call together."""

    begin: Any  # (query_start, context_lens) -> Items
    find: Any  # (Items, round, not before the last one, query_start, context_lens, heads) -> Items, this block's Item of the round


@functools.cache
def make_order(query_tile):
    """The ItemOrder of tiles of `query_tile` rows."""

    @cuda.jit(device=True)
    def levels_of(sequence, query_start, context_lens):
        """(lowest level, levels) of a sequence's tiles; without levels for one that does not exist."""
        if sequence >= int32(context_lens.shape[0]):
            return int32(0), int32(0)
        query_len = int32(query_start[sequence + 1] - query_start[sequence])
        first_position = uint32(max(int32(0), int32(context_lens[sequence] - query_len)))
        return int32(first_position // uint32(query_tile)), int32(uint32(query_len + query_tile - 1) // uint32(query_tile))

    @cuda.jit(device=True)
    def begin(query_start, context_lens):
        lane = int32(uint32(cuda.threadIdx.x) % uint32(WARP))
        highest, sequence = int32(0), lane
        while sequence < int32(context_lens.shape[0]):
            lowest, levels = levels_of(sequence, query_start, context_lens)
            highest, sequence = max(highest, int32(lowest + levels)), int32(sequence + WARP)
        lowest, levels = levels_of(lane, query_start, context_lens)
        return Items(int32(warp_max(highest)), int32(0), int32(0), lowest, levels)

    @cuda.jit(device=True)
    def owners_of(level, lowest, levels):
        """Which of 32 sequences have a tile at this level, as bits."""
        return uint32(cuda.ballot_sync(ALL_LANES, uint32(level - lowest) < uint32(levels)))

    @cuda.jit(device=True)
    def number(round_number):
        blocks, block = int32(cuda.gridDim.x), int32(cuda.blockIdx.x)
        return int32(round_number * blocks + (blocks - 1 - block if round_number & 1 else block))

    @cuda.jit(device=True)
    def find(items, round_number, query_start, context_lens, heads):
        level, first_sequence, before, lowest, levels = items
        item, sequences = number(round_number), int32(context_lens.shape[0])
        owners = owners_of(level, lowest, levels)
        here = int32(cuda.popc(owners) * heads)
        while level >= 0 and int32(item - before) >= here:
            before, first_sequence = int32(before + here), int32(first_sequence + WARP)
            if first_sequence >= sequences:
                level, first_sequence = int32(level - 1), int32(0)
            if sequences > WARP:  # otherwise the lanes' sequences remain
                lane = int32(uint32(cuda.threadIdx.x) % uint32(WARP))
                lowest, levels = levels_of(int32(first_sequence + lane), query_start, context_lens)
            owners = owners_of(level, lowest, levels)
            here = int32(cuda.popc(owners) * heads)
        head = int32(item - before)
        while level >= 0 and head >= heads:  # without a division, for which a producer has no registers
            owners, head = uint32(owners & uint32(owners - uint32(1))), int32(head - heads)
        owner = int32(cuda.ffs(owners) - 1)
        first_row = int32(int32(level - cuda.shfl_sync(ALL_LANES, lowest, max(owner, int32(0)))) * query_tile)
        sequence = int32(first_sequence + owner) if level >= 0 else int32(-1)
        return Items(level, first_sequence, before, lowest, levels), Item(sequence, head, first_row)

    return ItemOrder(begin, find)


@functools.cache
def make_work(shape):
    """(key_range, hand_out, hand_out_end): device functions that describe a work item."""
    query_tile, key_tile = shape.query_tile, shape.key_tile

    @cuda.jit(device=True)
    def key_range(first_position, context_len, window):
        """(first key that a row of the tile sees, end of these keys, first tile of keys, number of tiles, at least one)."""
        visible_start = int32(max(0, first_position - window + 1) if window > 0 else 0)
        visible_stop = int32(max(0, min(context_len, first_position + query_tile)))
        first_tile = int32(uint32(visible_start) // uint32(key_tile))
        stop_tile = int32(uint32(visible_stop + key_tile - 1) // uint32(key_tile))
        return visible_start, visible_stop, first_tile, int32(max(1, stop_tile - first_tile))

    @cuda.jit(device=True)
    def hand_out(work, handed, count, first_tile, first_position, visible_start, context_len, token, head, rows):
        """Describe a work item in shared memory, where consumers read it after its queries have arrived."""
        at = WORK_WORDS * (handed & (WORK_SLOTS - 1))
        work[at + COUNT], work[at + STOP_TILE] = count, first_tile + count
        work[at + FIRST_POSITION], work[at + VISIBLE_START], work[at + CONTEXT_LEN] = first_position, visible_start, context_len
        work[at + TOKEN], work[at + HEAD], work[at + ROWS] = token, head, rows

    @cuda.jit(device=True)
    def hand_out_end(work, handed):
        """Mark the end of the items."""
        work[WORK_WORDS * (handed & (WORK_SLOTS - 1)) + COUNT] = -1

    return key_range, hand_out, hand_out_end
