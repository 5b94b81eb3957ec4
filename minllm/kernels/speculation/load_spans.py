"""The first kernel of a step that verifies drafts: fills the rows of the batch from the state of their slots.

Sequence b has the rows query_start[b] to query_start[b + 1], a run of slot s. If the slot holds n tokens, of which the newest has no key
and value yet, the row at offset j of the run gets

    token_ids ← newest_tokens[s] if j = 0, else drafts[s, j - 1]
    positions ← n - 1 + j,   slot_mapping ← the cache slot of n - 1 + j

and the sequence gets context_lens ← n - 1 + rows, block_tables ← block_tables of s for this length. In a tree of drafts a row has the
position n - 1 + depth(j) instead, and still the cache slot of n - 1 + j. load_rows.py does the same for runs of one row. A draft model,
which drafts token by token or level by level, loads runs that begin at offset `ahead`; rows for which it has no room write no keys and
values (slot_mapping -1). A padding row, slot -1, gets token 0 at position 0, cache slot -1 and context length 0; a sequence without rows
gets context length 0.

Bytes: 20 per row, and 8 per block of each context. Threads to data: one block of threads per sequence.
"""

import numpy as np
from numba import cuda, int32

from minllm.kernels.arguments import INDEX_DTYPES, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.slots.state import SlotState
from minllm.kernels.speculation.state import DraftState
from minllm.kernels.speculation.token_tree import TreeArrays
from minllm.runtime.kernel import check, kernel, launch

THREADS = 128


def load_spans_reference(
    slots: np.ndarray, state: SlotState, drafts: DraftState, batch, block_size: int, ahead: int = 0, room: np.ndarray | None = None
) -> None:  # fmt: skip
    """Write the arrays of B sequences, in place; slots int32 [R], with R at least the number of the sequences' rows.

    batch: has query_start int32 [B + 1]; token_ids, positions, slot_mapping int32 [T], with T at least the number of rows; context_lens
    int32 [B]; block_tables int32 [B, columns], with as many columns as the longest context needs. ahead: the offset of each run's first
    row. room: int32 [B], number of tokens that the blocks of each sequence hold; None if there are enough blocks.
    """
    for sequence, (first, end) in enumerate(zip(batch.query_start[:-1], batch.query_start[1:], strict=True)):
        slot, rows, count = slots[first] if first < end else -1, slice(first, end), end - first
        if slot < 0:
            batch.token_ids[rows], batch.positions[rows], batch.slot_mapping[rows], batch.context_lens[sequence] = 0, 0, -1, 0
            continue
        table, start = state.block_tables[slot], state.lengths[slot] - 1 + ahead
        context = start + count if room is None else min(start + count, room[sequence])
        positions = np.arange(start, start + count)
        inside = np.minimum(positions, context - 1)
        batch.token_ids[rows] = [state.newest_tokens[slot], *drafts.drafts[slot]][ahead : ahead + count]
        batch.positions[rows] = inside if drafts.tree is None else tree_positions(drafts.tree, state.lengths[slot] - 1, inside, ahead)
        places = table[inside // block_size] * block_size + inside % block_size
        batch.slot_mapping[rows] = np.where(positions < context, places, -1)
        batch.context_lens[sequence] = context
        blocks = (context - 1) // block_size + 1
        batch.block_tables[sequence, :blocks] = table[:blocks]


def tree_positions(tree: TreeArrays, root: int, inside: np.ndarray, ahead: int) -> np.ndarray:
    """Positions of the nodes from `ahead` on. root: position of the newest token; inside: index of each node in the context, [rows]."""
    return np.minimum(np.minimum(root + tree.depths[ahead : ahead + len(inside)], inside), tree.longest - 1)


@kernel(dependent_launch=True)
def load_spans_kernel(
    slots, newest_tokens, lengths, tables_of_slots, drafts, query_start, token_ids, positions, slot_mapping, context_lens, block_tables,
    block_size, ahead, room, has_room, depths, longest,
):  # fmt: skip
    """slots int32 [R]; newest_tokens, lengths int32 [S]; tables_of_slots int32 [S, W]; drafts int32 [S, K]; query_start int32 [B + 1];
    token_ids, positions, slot_mapping int32 [T]; context_lens int32 [B], block_tables [B, columns]; room int32 [B], read if has_room;
    depths int32 [nodes], read if longest > 0, the most tokens of a sequence."""
    wait_for_predecessors()
    sequence, thread = cuda.blockIdx.x, int32(cuda.threadIdx.x)
    first, end = query_start[sequence], query_start[sequence + 1]
    slot = int32(-1)
    if first < end:
        slot = slots[first]
    row = int32(first + thread)
    if slot < 0:
        while row < end:
            token_ids[row], positions[row], slot_mapping[row] = 0, 0, -1
            row += THREADS
        if thread == 0:
            context_lens[sequence] = 0
        return
    start = int32(lengths[slot] - 1 + ahead)
    context = int32(start + end - first)
    if has_room != 0:
        context = min(context, room[sequence])
    while row < end:
        offset = int32(row - first)
        position = int32(start + offset)
        token_ids[row] = newest_tokens[slot] if offset + ahead == 0 else drafts[slot, offset + ahead - 1]
        slot_mapping[row] = -1
        if position < context:
            slot_mapping[row] = tables_of_slots[slot, position // block_size] * block_size + position % block_size
        position = min(position, int32(context - 1))
        if longest > 0:
            position = min(min(position, int32(lengths[slot] - 1 + depths[offset + ahead])), int32(longest - 1))
        positions[row] = position
        row += THREADS
    if thread == 0:
        context_lens[sequence] = context
    column = thread
    while column <= (context - 1) // block_size:
        block_tables[sequence, column] = tables_of_slots[slot, column]
        column += THREADS


def load_spans(slots, state: SlotState, drafts: DraftState, batch, block_size: int, ahead: int = 0, room=None, stream=None) -> None:
    """Write the arrays, in place; arguments as in `load_spans_reference`, all NumPy or all on one device."""
    count = batch.context_lens.shape[0]
    check_array("slots", slots, INDEX_DTYPES, rows=None)
    check_array("query_start", batch.query_start, INDEX_DTYPES, starts=count + 1)
    check_array("drafts", drafts.drafts, INDEX_DTYPES, slots=state.lengths.shape[0], drafts=None)
    named = dict(token_ids=batch.token_ids, positions=batch.positions, slot_mapping=batch.slot_mapping)
    for name, array in named.items():
        check_array(name, array, INDEX_DTYPES, tokens=batch.token_ids.shape[0])
    check_array("block_tables", batch.block_tables, INDEX_DTYPES, sequences=count, columns=None)
    columns, width = batch.block_tables.shape[1], state.block_tables.shape[1]
    check(columns <= width, f"block_tables has {columns} columns; it may have up to {width}, as many as those of the slots")
    if room is not None:
        check_array("room", room, INDEX_DTYPES, sequences=count)
    of_slots = (slots, state.newest_tokens, state.lengths, state.block_tables, drafts.drafts)
    arrays = (*of_slots, batch.query_start, *named.values(), batch.context_lens, batch.block_tables)
    # A kernel's arguments are always arrays; without room, or a tree, these are not accessed.
    limits = (batch.context_lens if room is None else room, int(room is not None))
    tree = (batch.context_lens, 0) if drafts.tree is None else (drafts.tree.depths, int(drafts.tree.longest))
    launch(load_spans_kernel, count, THREADS, (*arrays, int(block_size), int(ahead), *limits, *tree), stream)
