"""How a decode step's keys are divided among blocks: a line of tiles, cut into runs.

The tiles of all sequences' visible keys form one line: the heads of one sequence after another, then those of the next sequence. Each
block takes a run of neighbouring tiles. "Head" here means the unit that a block processes at a time: a KV head, or a tile of its query
heads. Every warp computes the plan from context_lens on the device, so that a captured CUDA graph serves contexts that grow.

    fair_plan.py     equal runs for all blocks, whatever the lengths of the contexts
    fixed_plan.py    an equal share of one head per block: results do not depend on the rest of the batch
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

from numba import cuda, int32, uint32

from minllm.runtime.array_protocol import Array


class Batch(NamedTuple):
    """The batch of a launch, from the kernel's arguments."""

    query_start: Array  # [sequences + 1]
    context_lens: Array  # [sequences]
    block_tables: Array  # [sequences, max_blocks]
    line_heads: int  # heads of each sequence on the line
    sliding_window: int


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
    start = int32(0)
    if batch.sliding_window > 0:
        start = max(start, int32(stop - batch.sliding_window))
    return start, stop


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
