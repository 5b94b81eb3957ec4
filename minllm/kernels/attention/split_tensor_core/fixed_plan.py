"""The plan with a fixed number of splits: every head of the line (plan.py) is cut into the same number of equal shares, one per block.

Block (sequence * heads + head) * splits + split takes a share of one head. A sequence is always cut at the same positions, so that results
do not depend on the rest of the batch.
"""

import functools

from numba import cuda, int32

from minllm.kernels.attention.split_tensor_core.plan import Cursor, Cut, Plan, make_steps, quotient, visible_keys


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
