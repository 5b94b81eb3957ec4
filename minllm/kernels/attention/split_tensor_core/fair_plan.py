"""The plan of fair shares: the line of tiles (plan.py), cut into equal runs.

A run may end in the middle of a head, where the next run begins (merge_parts.py). The number of blocks that work is chosen so that, in a
batch of equal lengths, every head gets a whole number of blocks, or every block a whole number of heads, as long as at most an eighth of
the grid stays idle: then few heads are cut, or none.
"""

import functools

from numba import cuda, int32

from minllm.kernels.attention.split_tensor_core.plan import Cursor, Cut, Plan, make_steps, quotient, visible_keys
from minllm.tiles.warp import ALL_LANES, warp_sum

SEQUENCES_AT_ONCE = 4  # sequence lengths that a lane loads together


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
