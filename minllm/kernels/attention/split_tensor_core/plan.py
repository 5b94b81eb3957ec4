"""Divides a decode step's keys among blocks: a line of tiles, cut into fair shares.

The tiles of all sequences' visible keys form one line: the heads of one sequence after another, then those of the next sequence. Each
block takes a run of neighbouring tiles, which may end in the middle of a head, where the next run begins (merge_parts.py). Every warp
computes the plan from context_lens on the device, so that a captured CUDA graph serves contexts that grow.

The number of blocks that work is chosen so that, in a batch of equal lengths, every head gets a whole number of blocks, or every block a
whole number of heads, as long as at most an eighth of the grid stays idle: then few heads are cut, or none. "Head" here means the unit that
a block processes at a time: a KV head, or a tile of its query heads.

With a fixed number of splits per head, results do not depend on the rest of the batch, because a sequence is always cut at the same
positions: block (sequence * heads + head) * splits + split takes an equal share of one head.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

from numba import cuda, int32, uint32

from minllm.runtime.array_protocol import Array
from minllm.tiles.warp import ALL_LANES, warp_sum

SEQUENCES_AT_ONCE = 4  # sequence lengths that a lane loads together


class Batch(NamedTuple):
    """The batch of a launch, from the kernel's arguments."""

    query_start: Array  # [sequences + 1]
    context_lens: Array  # [sequences]
    block_tables: Array  # [sequences, max_blocks]
    line_heads: int  # heads of each sequence on the line
    sliding_window: int
    first_key: int  # keys before this one are not read


class Cursor(NamedTuple):
    """A block's position on the line; all fields are int32."""

    sequence: int
    head: int
    tile: int  # within this sequence and head
    tiles: int  # number of tiles in this sequence and head
    first: int  # the sequence's first tile, in tiles from position 0
    left: int  # tiles left in the block's run


class Cut(NamedTuple):
    """How the line is cut into runs: the first `larger` runs have share + 1 tiles, the others `share`."""

    line: int  # the tile of the line at which this block's run begins
    share: int
    larger: int


class Plan(NamedTuple):
    """The device functions of a division of the line among blocks."""

    visible_keys: Callable  # (sequence, batch) -> (first key, one past the last)
    begin: Callable  # (batch) -> (Cursor, Cut) of this block
    advance: Callable  # (cursor, tiles, batch) -> Cursor
    parts_of_head: Callable  # (cursor, cut, line) -> (slot of the head's first part, number of parts)


@cuda.jit(device=True)
def quotient(a, b):
    """a // b of numbers >= 0 by a 32-bit division; Numba divides int32 in 64 bits, which takes several times as long."""
    return int32(uint32(a) // uint32(b))


@cuda.jit(device=True)
def visible_keys(sequence, batch):
    """(first, one past the last) of the keys that a sequence's new token sees; no keys if there is no new token."""
    stop = int32(batch.context_lens[uint32(sequence)])
    if batch.query_start[uint32(sequence + 1)] == batch.query_start[uint32(sequence)]:
        stop = int32(0)
    start = int32(batch.first_key)
    if batch.sliding_window > 0:
        start = max(start, int32(stop - batch.sliding_window))
    return start, stop


@cuda.jit(device=True)
def workers_of(heads, blocks):
    """The number of blocks that get work if the line has this number of heads."""
    if heads <= blocks:
        even = int32(quotient(blocks, heads) * heads)
    else:
        rounds = quotient(heads + blocks - 1, blocks)
        even = quotient(heads + rounds - 1, rounds)
    return even if 8 * even >= 7 * blocks else blocks


@functools.cache
def make_steps(tile, visible):
    """(tiles_of, advance) for tiles of `tile` keys; visible: a visible_keys."""

    @cuda.jit(device=True)
    def tiles_of(sequence, batch):
        """(first tile, tiles) of the visible keys."""
        start, stop = visible(sequence, batch)
        first = quotient(start, tile)
        return first, int32(max(0, quotient(stop + tile - 1, tile) - first))

    @cuda.jit(device=True)
    def advance(cursor, steps, batch):
        """Advance by `steps` tiles, at most to the end of the head, and from there, if the run continues, to the next head with tiles."""
        sequence, head, tiles, first = cursor.sequence, cursor.head, cursor.tiles, cursor.first
        at, left = int32(cursor.tile + steps), int32(cursor.left - steps)
        if at == tiles and left > 0:
            at = int32(0)
            head = int32(head + 1)
            if head == batch.line_heads:
                head = int32(0)
                tiles = int32(0)
                while tiles == 0:
                    sequence = int32(sequence + 1)
                    first, tiles = tiles_of(sequence, batch)
        return Cursor(sequence, head, at, tiles, first, left)

    return tiles_of, advance


@functools.cache
def make_fair_plan(tile, visible=visible_keys):
    """The Plan of fair shares."""
    tiles_of, advance = make_steps(tile, visible)

    @cuda.jit(device=True)
    def load_tiles(first, tiles, batch):
        """Set `tiles` to the tiles, over all heads, of this lane's sequences of those from `first` on; returns their sum."""
        total = int32(0)
        for i in range(SEQUENCES_AT_ONCE):
            sequence = int32(first + SEQUENCES_AT_ONCE * (cuda.threadIdx.x % 32) + i)
            tiles[i] = int32(0)
            if sequence < batch.context_lens.shape[0]:
                _, count = tiles_of(sequence, batch)
                tiles[i] = int32(count * batch.line_heads)
            total = int32(total + tiles[i])
        return total

    @cuda.jit(device=True)
    def add_up(tiles, batch):
        """(tiles, heads that have tiles), both over all sequences."""
        total, busy, first = int32(0), int32(0), int32(0)
        while first < batch.context_lens.shape[0]:
            total = int32(total + load_tiles(first, tiles, batch))
            for i in range(SEQUENCES_AT_ONCE):
                busy = int32(busy + min(tiles[i], 1))
            first = int32(first + 32 * SEQUENCES_AT_ONCE)
        return warp_sum(total), int32(warp_sum(busy) * batch.line_heads)

    @cuda.jit(device=True)
    def find_sequence(line, tiles, batch):
        """(sequence of tile `line` of the line, offset of that tile in the sequence); searches 32 * SEQUENCES_AT_ONCE at a time."""
        lane = cuda.threadIdx.x % 32
        before, first = int32(0), int32(0)  # tiles of all sequences before these; the first of these
        while True:
            mine = load_tiles(first, tiles, batch)
            through = mine  # tiles of these sequences up to this lane's last
            for distance in (1, 2, 4, 8, 16):
                lower = cuda.shfl_up_sync(ALL_LANES, through, distance)
                if lane >= distance:
                    through = int32(through + lower)
            here = cuda.ballot_sync(ALL_LANES, line < before + through)
            if here:
                sequence, offset = int32(first + SEQUENCES_AT_ONCE * lane), int32(line - before - through + mine)
                passed = True
                for i in range(SEQUENCES_AT_ONCE):
                    passed = passed and offset >= tiles[i]
                    if passed:
                        sequence, offset = int32(sequence + 1), int32(offset - tiles[i])
                owner = cuda.ffs(here) - 1
                return cuda.shfl_sync(ALL_LANES, sequence, owner), cuda.shfl_sync(ALL_LANES, offset, owner)
            before = int32(before + cuda.shfl_sync(ALL_LANES, through, 31))
            first = int32(first + 32 * SEQUENCES_AT_ONCE)

    @cuda.jit(device=True)
    def begin(batch):
        """(Cursor at this block's first tile, Cut); `left` is 0 for a block without work."""
        sequence, head, at, left, within = int32(0), int32(0), int32(0), int32(0), int32(0)
        of_lane = cuda.local.array(SEQUENCES_AT_ONCE, int32)
        alone = batch.context_lens.shape[0] == 1  # with one sequence there is nothing to add up, which saves a microsecond
        if alone:
            first, tiles = tiles_of(0, batch)
            total, busy = int32(tiles * batch.line_heads), int32(min(tiles, 1) * batch.line_heads)
        else:
            first, tiles = int32(0), int32(0)
            total, busy = add_up(of_lane, batch)
        line, share, larger = int32(0), int32(0), int32(0)
        if total > 0:
            block = int32(cuda.blockIdx.x)
            workers = min(total, workers_of(busy, int32(cuda.gridDim.x)))
            share = quotient(total, workers)
            larger = int32(total - share * workers)
            line = int32(block * share + min(block, larger))
            if block < workers:
                left = int32(share + (1 if block < larger else 0))
                within = line
                if not alone:
                    sequence, within = find_sequence(line, of_lane, batch)
                    first, tiles = tiles_of(sequence, batch)
                head = quotient(within, tiles)
                at = int32(within - head * tiles)
        return Cursor(sequence, head, at, tiles, first, left), Cut(line, share, larger)

    @cuda.jit(device=True)
    def block_at(cut, line):
        """The block with tile `line` in its run."""
        of_larger = int32(cut.larger * (cut.share + 1))
        if line < of_larger:
            return quotient(line, cut.share + 1)
        return int32(cut.larger + quotient(line - of_larger, cut.share))

    @cuda.jit(device=True)
    def parts_of_head(cursor, cut, line):
        """(slot of the first part, number of parts) of the cursor's head; `line`: cursor.tile on the line (merge_parts.slot_of_part)."""
        first = int32(line - cursor.tile)
        block, last_block = block_at(cut, first), block_at(cut, int32(first + cursor.tiles - 1))
        run_start = int32(block * cut.share + min(block, cut.larger))
        return int32(2 * block + (0 if run_start == first else 1)), int32(last_block - block + 1)

    return Plan(visible, begin, advance, parts_of_head)


@functools.cache
def make_fixed_plan(tile, splits, visible=visible_keys):
    """The Plan with a fixed number of splits per head, for tiles of `tile` keys."""
    tiles_of, advance = make_steps(tile, visible)

    @cuda.jit(device=True)
    def begin(batch):
        """(Cursor at this block's first tile, Cut); the last splits of a short context are empty."""
        block = int32(cuda.blockIdx.x)
        pair = quotient(block, splits)
        sequence = quotient(pair, batch.line_heads)
        first, tiles = tiles_of(sequence, batch)
        share = quotient(tiles + splits - 1, splits)
        at = int32((block - pair * splits) * share)
        left = int32(max(0, min(share, tiles - at)))
        return Cursor(sequence, int32(pair - sequence * batch.line_heads), at, tiles, first, left), Cut(int32(0), share, int32(0))

    @cuda.jit(device=True)
    def parts_of_head(cursor, cut, line):
        """(slot of the first part, number of parts) of the cursor's head."""
        return int32(2 * splits * quotient(cuda.blockIdx.x, splits)), int32(quotient(cursor.tiles - 1, cut.share) + 1)

    return Plan(visible, begin, advance, parts_of_head)


def make_plan(tile, splits, visible=visible_keys):
    """The Plan for tiles of `tile` keys. splits: None for fair shares, else the number of splits of every head."""
    return make_fixed_plan(tile, splits, visible) if splits else make_fair_plan(tile, visible)
