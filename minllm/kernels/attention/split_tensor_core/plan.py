"""How a decode step's keys are shared out among the blocks of a grid (split_tensor_core.py): a line of tiles, cut into fair shares.

The visible keys of a sequence are taken in tiles. Lay the tiles of all sequences and heads on one line, a sequence behind the other,
within it a head behind the other: each block takes a run of neighbouring tiles. A run may end in the middle of a head and the next begin
there; a head that is cut is put together by merging (merge_parts.py). All is computed from context_lens on the device, by every
warp for itself, so that a CUDA graph that was captured once serves contexts that grow.

Of `blocks` in the grid, as many work as give every head of a batch of equal lengths a whole number of blocks, or every block a whole
number of heads, as long as that leaves no more than an eighth of them idle: then few heads are cut, or none.

With a fixed number of `splits` a sequence is cut in the same places whatever the batch around it: block (sequence * heads + head) * splits
+ split takes an equal share of one head. "Head" is here and below what a block takes at one time: a KV head, or a part of its query heads.

A cursor says where in the line a block is: int32 fields of a local array, which the compiler keeps in registers. `batch` is the tuple
(query_start, context_lens, sliding_window, first_key, residual_window) of the kernel's arguments and constants.
"""

import functools

from numba import cuda, int32, uint32

from minllm.kernels.attention.common.window_keys import code_keys
from minllm.kernels.reduction import warp_sum
from minllm.kernels.warp import ALL_LANES

# Fields of a cursor.
SEQUENCE, HEAD, TILE, TILES, FIRST, LEFT = range(6)  # TILES: of this sequence and head; FIRST: its first tile; LEFT: of the block's run
CURSOR_FIELDS = 6
# Fields of a cut: LINE, where on the line this block's run begins; the first LARGER runs have SHARE + 1 tiles, the others SHARE.
LINE, SHARE, LARGER = range(3)
CUT_FIELDS = 3
SEQUENCES_AT_ONCE = 4  # of a lane, whose lengths are on their way together


@cuda.jit(device=True)
def quotient(a, b):
    """a // b of numbers that are not negative: a division of 32 bits, where Numba's of int32 is one of 64 and several times as long."""
    return int32(uint32(a) // uint32(b))


@cuda.jit(device=True)
def visible_keys(sequence, batch):
    """(first, one past the last) of the keys that a sequence's new token sees from first_key on; none without a new token."""
    query_start, context_lens, sliding_window, first_key, residual_window = batch
    stop = int32(context_lens[uint32(sequence)])
    if query_start[uint32(sequence + 1)] == query_start[uint32(sequence)]:
        stop = int32(0)
    start = int32(first_key)
    if sliding_window > 0:
        start = max(start, int32(stop - sliding_window))
    if residual_window > 0:  # of those only what is kept as codes
        stop = code_keys(int32(stop - 1), residual_window)
        if start >= stop:
            start, stop = int32(0), int32(0)
    return start, stop


@cuda.jit(device=True)
def workers_of(heads, blocks):
    """How many of the blocks work on so many heads."""
    if heads <= blocks:
        even = int32(quotient(blocks, heads) * heads)
    else:
        rounds = quotient(heads + blocks - 1, blocks)
        even = quotient(heads + rounds - 1, rounds)
    return even if 8 * even >= 7 * blocks else blocks


@functools.cache
def make_walk(tile):
    """The device functions (tiles_of, advance) for tiles of `tile` keys."""

    @cuda.jit(device=True)
    def tiles_of(sequence, batch):
        """(first tile, tiles) of the visible keys."""
        start, stop = visible_keys(sequence, batch)
        first = quotient(start, tile)
        return first, int32(max(0, quotient(stop + tile - 1, tile) - first))

    @cuda.jit(device=True)
    def advance(cursor, tiles, heads, batch):
        """Go on by `tiles`, at most to the end of the head, and there, if the run goes on, to the next head or sequence with tiles."""
        cursor[TILE] = int32(cursor[TILE] + tiles)
        cursor[LEFT] = int32(cursor[LEFT] - tiles)
        if cursor[TILE] == cursor[TILES] and cursor[LEFT] > 0:
            cursor[TILE] = int32(0)
            cursor[HEAD] = int32(cursor[HEAD] + 1)
            if cursor[HEAD] == heads:
                cursor[HEAD] = int32(0)
                cursor[TILES] = int32(0)
                while cursor[TILES] == 0:
                    cursor[SEQUENCE] = int32(cursor[SEQUENCE] + 1)
                    cursor[FIRST], cursor[TILES] = tiles_of(cursor[SEQUENCE], batch)

    return tiles_of, advance


@functools.cache
def make_fair_plan(tile):
    """The device functions (begin, parts_of_head) of fair shares."""
    tiles_of, _ = make_walk(tile)

    @cuda.jit(device=True)
    def add_up(heads, batch):
        """(tiles, heads that have any) of all sequences."""
        total, busy, sequences = int32(0), int32(0), int32(batch[1].shape[0])
        first = int32(cuda.threadIdx.x % 32)
        while first < sequences:
            for i in range(SEQUENCES_AT_ONCE):
                sequence = int32(first + 32 * i)
                _, tiles = tiles_of(min(sequence, int32(sequences - 1)), batch)
                if sequence < sequences:
                    total = int32(total + tiles)
                    busy = int32(busy + min(tiles, 1))
            first = int32(first + 32 * SEQUENCES_AT_ONCE)
        return int32(warp_sum(total) * heads), int32(warp_sum(busy) * heads)

    @cuda.jit(device=True)
    def find_sequence(cursor, line, heads, batch):
        """Set cursor[SEQUENCE] to the one that has place `line`, 32 sequences at a time; returns how far into it that is."""
        lane = cuda.threadIdx.x % 32
        before, chunk = int32(0), int32(0)  # tiles of earlier sequences; the first of the 32
        while True:
            tiles = int32(0)
            if chunk + lane < batch[1].shape[0]:
                _, tiles = tiles_of(chunk + lane, batch)
                tiles = int32(tiles * heads)
            through = tiles  # tiles of these sequences up to this lane's
            for distance in (1, 2, 4, 8, 16):
                lower = cuda.shfl_up_sync(ALL_LANES, through, distance)
                if lane >= distance:
                    through = int32(through + lower)
            here = cuda.ballot_sync(ALL_LANES, line < before + through)
            if here:
                owner = cuda.ffs(here) - 1
                cursor[SEQUENCE] = int32(chunk + owner)
                return int32(line - before - cuda.shfl_sync(ALL_LANES, int32(through - tiles), owner))
            before = int32(before + cuda.shfl_sync(ALL_LANES, through, 31))
            chunk = int32(chunk + 32)

    @cuda.jit(device=True)
    def begin(cursor, cut, heads, batch):
        """Set cursor and cut for this block; LEFT is 0 for a block that has nothing to do."""
        for field in range(CURSOR_FIELDS):
            cursor[field] = int32(0)
        cut[LINE] = int32(0)
        if batch[1].shape[0] == 1:  # no need to add up: a microsecond less where every one counts
            first, tiles = tiles_of(0, batch)
            total, busy = int32(tiles * heads), int32(min(tiles, 1) * heads)
        else:
            first, tiles = int32(0), int32(0)
            total, busy = add_up(heads, batch)
        if total == 0:
            return
        block = int32(cuda.blockIdx.x)
        workers = min(total, workers_of(busy, int32(cuda.gridDim.x)))
        cut[SHARE] = quotient(total, workers)
        cut[LARGER] = int32(total - cut[SHARE] * workers)
        cut[LINE] = int32(block * cut[SHARE] + min(block, cut[LARGER]))
        if block < workers:
            cursor[LEFT] = int32(cut[SHARE] + (1 if block < cut[LARGER] else 0))
            within = cut[LINE]
            if batch[1].shape[0] > 1:
                within = find_sequence(cursor, cut[LINE], heads, batch)
                first, tiles = tiles_of(cursor[SEQUENCE], batch)
            cursor[FIRST], cursor[TILES] = first, tiles
            cursor[HEAD] = quotient(within, tiles)
            cursor[TILE] = int32(within - cursor[HEAD] * tiles)

    @cuda.jit(device=True)
    def block_at(cut, line):
        """The block that has place `line`."""
        of_larger = int32(cut[LARGER] * (cut[SHARE] + 1))
        if line < of_larger:
            return quotient(line, cut[SHARE] + 1)
        return int32(cut[LARGER] + quotient(line - of_larger, cut[SHARE]))

    @cuda.jit(device=True)
    def parts_of_head(cursor, cut, line):
        """(first place, parts) of the cursor's head, whose tile cursor[TILE] is at place `line` of the line: see place_of_part."""
        first = int32(line - cursor[TILE])
        block, last_block = block_at(cut, first), block_at(cut, int32(first + cursor[TILES] - 1))
        run_start = int32(block * cut[SHARE] + min(block, cut[LARGER]))
        return int32(2 * block + (0 if run_start == first else 1)), int32(last_block - block + 1)

    return begin, parts_of_head


@functools.cache
def make_fixed_plan(tile, splits):
    """The same for a fixed number of splits."""
    tiles_of, _ = make_walk(tile)

    @cuda.jit(device=True)
    def begin(cursor, cut, heads, batch):
        """Set cursor and cut for this block; the last splits of a short context are empty."""
        block = int32(cuda.blockIdx.x)
        pair = quotient(block, splits)
        cursor[SEQUENCE] = quotient(pair, heads)
        cursor[HEAD] = int32(pair - cursor[SEQUENCE] * heads)
        cursor[FIRST], cursor[TILES] = tiles_of(cursor[SEQUENCE], batch)
        cut[SHARE] = quotient(cursor[TILES] + splits - 1, splits)
        cut[LARGER] = int32(0)
        cut[LINE] = int32(0)
        cursor[TILE] = int32((block - pair * splits) * cut[SHARE])
        cursor[LEFT] = int32(max(0, min(cut[SHARE], cursor[TILES] - cursor[TILE])))

    @cuda.jit(device=True)
    def parts_of_head(cursor, cut, line):
        """(first place, parts) of the cursor's head."""
        return int32(2 * splits * quotient(cuda.blockIdx.x, splits)), int32(quotient(cursor[TILES] - 1, cut[SHARE]) + 1)

    return begin, parts_of_head
