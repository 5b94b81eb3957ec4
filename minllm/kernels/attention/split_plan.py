"""How a decode step's keys are shared out among the blocks of a grid (split_tensor_core.py): a line of tiles, cut into fair shares.

The visible keys of a sequence are taken in tiles of TILE keys. Lay the tiles of all sequences and heads on one line, a sequence behind
the other, within it a head behind the other: each block takes a run of neighbouring tiles. A run may end in the middle of a head and
begin in the middle of another; a head that is cut is put together by merging (split_state.py). All is computed from context_lens on the
device, by every block for itself, so that a CUDA graph that was captured once serves contexts that grow.

`blocks` of the grid are cut to as many `workers` as give every head of a batch of equal lengths a whole number of blocks, or every block
a whole number of heads, as long as that leaves no more than an eighth of them idle: then few heads are cut, or none.

With a fixed number of `splits` a sequence's tiles are cut in the same places whatever the batch around it: block
(sequence * heads + head) * splits + split takes an equal share of one head.

A Cursor is where in the line a block is: int32 fields of a local array, which the compiler keeps in registers.
"""

import functools

from numba import cuda, int32, uint32

from minllm.kernels.reduction import warp_sum

FULL_WARP = 0xFFFFFFFF
# Fields of a cursor.
SEQUENCE, HEAD, TILE, TILES, FIRST, LEFT = range(6)  # TILES: of this sequence and head; FIRST: its first tile; LEFT: of the block's run
CURSOR_FIELDS = 6
# Fields of a cut, which says where the line was cut: the first LARGER workers take SHARE + 1 tiles, the others SHARE.
LINE, SHARE, LARGER = range(3)  # LINE: where on the line this block's run begins
CUT_FIELDS = 3


@cuda.jit(device=True)
def quotient(a, b):
    """a // b of numbers that are not negative: a division of 32 bits, where Numba's of int32 is one of 64 and several times as long."""
    return int32(uint32(a) // uint32(b))


@cuda.jit(device=True)
def workers_of(pairs, blocks):
    """How many blocks work on `pairs` heads of sequences."""
    if pairs <= blocks:
        even = int32(quotient(blocks, pairs) * pairs)
    else:
        rounds = quotient(pairs + blocks - 1, blocks)
        even = quotient(pairs + rounds - 1, rounds)
    return even if 8 * even >= 7 * blocks else blocks


@functools.cache
def make_plan(tile, splits=None):
    """The device functions (begin, advance, parts_of_head) for tiles of `tile` keys."""

    @cuda.jit(device=True)
    def tiles_of(sequence, query_start, context_lens, sliding_window):
        """(first tile, tiles) of the keys that a sequence's new token sees; 0 tiles without a new token."""
        context = int32(context_lens[uint32(sequence)])
        if query_start[uint32(sequence + 1)] == query_start[uint32(sequence)]:
            context = int32(0)
        first = quotient(max(0, context - sliding_window), tile) if sliding_window > 0 else int32(0)
        return first, int32(quotient(context + tile - 1, tile) - first)

    @cuda.jit(device=True)
    def enter(cursor, query_start, context_lens, sliding_window):
        """The cursor's sequence has changed: find the next that has tiles, this one or a later one."""
        cursor[FIRST], cursor[TILES] = tiles_of(cursor[SEQUENCE], query_start, context_lens, sliding_window)
        while cursor[TILES] == 0:
            cursor[SEQUENCE] = int32(cursor[SEQUENCE] + 1)
            cursor[FIRST], cursor[TILES] = tiles_of(cursor[SEQUENCE], query_start, context_lens, sliding_window)

    @cuda.jit(device=True)
    def add_up(heads, query_start, context_lens, sliding_window):
        """(tiles, heads that have any) of all sequences."""
        total, busy = int32(0), int32(0)
        sequence = cuda.threadIdx.x % 32
        while sequence < context_lens.shape[0]:
            _, tiles = tiles_of(sequence, query_start, context_lens, sliding_window)
            total = int32(total + tiles)
            busy = int32(busy + min(tiles, 1))
            sequence += 32
        return int32(warp_sum(total) * heads), int32(warp_sum(busy) * heads)

    @cuda.jit(device=True)
    def find_sequence(cursor, line, heads, query_start, context_lens, sliding_window):
        """Set cursor[SEQUENCE] to the one that has place `line`, 32 sequences at a time; returns how far into it that is."""
        lane = cuda.threadIdx.x % 32
        before, chunk = int32(0), int32(0)  # tiles of earlier sequences; the first of the 32
        while True:
            tiles = int32(0)
            if chunk + lane < context_lens.shape[0]:
                _, tiles = tiles_of(chunk + lane, query_start, context_lens, sliding_window)
                tiles = int32(tiles * heads)
            through = tiles  # tiles of these sequences up to this lane's
            for distance in (1, 2, 4, 8, 16):
                lower = cuda.shfl_up_sync(FULL_WARP, through, distance)
                if lane >= distance:
                    through = int32(through + lower)
            here = cuda.ballot_sync(FULL_WARP, line < before + through)
            if here:
                owner = cuda.ffs(here) - 1
                cursor[SEQUENCE] = int32(chunk + owner)
                return int32(line - before - cuda.shfl_sync(FULL_WARP, int32(through - tiles), owner))
            before = int32(before + cuda.shfl_sync(FULL_WARP, through, 31))
            chunk = int32(chunk + 32)

    @cuda.jit(device=True)
    def begin_fair_share(cursor, cut, heads, query_start, context_lens, sliding_window):
        """Set cursor and cut for this block; LEFT is 0 for a block that has nothing to do."""
        for field in range(CURSOR_FIELDS):
            cursor[field] = int32(0)
        cut[LINE] = int32(0)
        if context_lens.shape[0] == 1:  # no need to add up: a microsecond less where every one counts
            first, tiles = tiles_of(0, query_start, context_lens, sliding_window)
            total, busy = int32(tiles * heads), int32(min(tiles, 1) * heads)
        else:
            first, tiles = int32(0), int32(0)
            total, busy = add_up(heads, query_start, context_lens, sliding_window)
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
            if context_lens.shape[0] > 1:
                within = find_sequence(cursor, cut[LINE], heads, query_start, context_lens, sliding_window)
                first, tiles = tiles_of(cursor[SEQUENCE], query_start, context_lens, sliding_window)
            cursor[FIRST], cursor[TILES] = first, tiles
            cursor[HEAD] = quotient(within, tiles)
            cursor[TILE] = int32(within - cursor[HEAD] * tiles)

    @cuda.jit(device=True)
    def worker_at(cut, line):
        """The block that has place `line`."""
        of_larger = int32(cut[LARGER] * (cut[SHARE] + 1))
        if line < of_larger:
            return quotient(line, cut[SHARE] + 1)
        return int32(cut[LARGER] + quotient(line - of_larger, cut[SHARE]))

    @cuda.jit(device=True)
    def fair_parts(cursor, cut, line):
        """(first place, parts) of the cursor's head, whose tile cursor[TILE] is at place `line`: see split_state.place_of."""
        first = int32(line - cursor[TILE])
        block, last_block = worker_at(cut, first), worker_at(cut, int32(first + cursor[TILES] - 1))
        run_start = int32(block * cut[SHARE] + min(block, cut[LARGER]))
        return int32(2 * block + (0 if run_start == first else 1)), int32(last_block - block + 1)

    @cuda.jit(device=True)
    def begin_fixed_splits(cursor, cut, heads, query_start, context_lens, sliding_window):
        """The same for a fixed number of splits."""
        block = int32(cuda.blockIdx.x)
        pair = quotient(block, splits)
        cursor[SEQUENCE] = quotient(pair, heads)
        cursor[HEAD] = int32(pair - cursor[SEQUENCE] * heads)
        cursor[FIRST], cursor[TILES] = tiles_of(cursor[SEQUENCE], query_start, context_lens, sliding_window)
        cut[SHARE] = quotient(cursor[TILES] + splits - 1, splits)
        cut[LARGER] = int32(0)
        cut[LINE] = int32(0)
        cursor[TILE] = int32((block - pair * splits) * cut[SHARE])
        cursor[LEFT] = int32(max(0, min(cut[SHARE], cursor[TILES] - cursor[TILE])))

    @cuda.jit(device=True)
    def fixed_parts(cursor, cut, line):
        """The same for a fixed number of splits: empty ones are the last."""
        return int32(2 * splits * quotient(cuda.blockIdx.x, splits)), int32(quotient(cursor[TILES] - 1, cut[SHARE]) + 1)

    @cuda.jit(device=True)
    def advance(cursor, tiles, heads, query_start, context_lens, sliding_window):
        """Go on by `tiles`, at most to the end of the head; where tiles are left, to the next head or sequence there."""
        cursor[TILE] = int32(cursor[TILE] + tiles)
        cursor[LEFT] = int32(cursor[LEFT] - tiles)
        if cursor[TILE] == cursor[TILES] and cursor[LEFT] > 0:
            cursor[TILE] = int32(0)
            cursor[HEAD] = int32(cursor[HEAD] + 1)
            if cursor[HEAD] == heads:
                cursor[HEAD] = int32(0)
                cursor[SEQUENCE] = int32(cursor[SEQUENCE] + 1)
                enter(cursor, query_start, context_lens, sliding_window)

    if splits is None:
        return begin_fair_share, advance, fair_parts
    return begin_fixed_splits, advance, fixed_parts
