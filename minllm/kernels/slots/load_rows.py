"""The first kernel of a decode step: fills the arrays of the batch from the state of its rows' slots.

For a row of slot s, with a sequence of n = lengths[s] tokens, of which the newest has no key and value yet:

    token_ids ← newest_tokens[s],   positions ← n - 1,   slot_mapping ← the cache slot of n - 1,   context_lens ← n
    block_tables ← block_tables of s,   first ceil(n / block_size) columns

A padding row, slot -1, gets token 0 at position 0, cache slot -1, so that no key and value is written, and context length 0, so that its
attention output is zeros; in a step with prompts it stays as the host wrote it, because prompts may begin there. Bytes: 32 per row and 8
per block of its context. Threads to data: one block of threads per row.
"""

import numpy as np
from numba import cuda, int32

from minllm.kernels.arguments import INDEX_DTYPES, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.runtime.kernel import check, kernel, launch

THREADS = 128


def load_rows_reference(slots: np.ndarray, state, batch, block_size: int, pads: bool = True) -> None:
    """Write the arrays of a decode batch of R rows, one per sequence, in place; slots int32 [R], state: SlotState.

    batch: has token_ids, positions, slot_mapping, context_lens int32 [R], and block_tables int32 [R, columns], with as many columns as the
    longest of these sequences needs; columns beyond a row's context are not written. pads: whether padding rows are written.
    """
    active = np.flatnonzero(slots >= 0)
    owners, positions = slots[active], state.lengths[slots[active]] - 1
    if pads:
        for array, padding in ((batch.token_ids, 0), (batch.positions, 0), (batch.slot_mapping, -1), (batch.context_lens, 0)):
            array[slots < 0] = padding
    batch.token_ids[active] = state.newest_tokens[owners]
    batch.positions[active] = positions
    batch.slot_mapping[active] = state.block_tables[owners, positions // block_size] * block_size + positions % block_size
    batch.context_lens[active] = positions + 1
    for row, slot, position in zip(active, owners, positions, strict=True):
        blocks = position // block_size + 1
        batch.block_tables[row, :blocks] = state.block_tables[slot, :blocks]


@kernel(dependent_launch=True)
def load_rows_kernel(
    slots, newest_tokens, lengths, tables_of_slots, token_ids, positions, slot_mapping, context_lens, block_tables, block_size, pads
):  # fmt: skip
    """slots int32 [R]; newest_tokens, lengths int32 [S]; tables_of_slots int32 [S, W]; token_ids, positions, slot_mapping, context_lens
    int32 [R]; block_tables int32 [R, columns]."""
    wait_for_predecessors()
    row, thread = cuda.blockIdx.x, int32(cuda.threadIdx.x)
    slot = slots[row]
    if slot < 0:
        if thread == 0 and pads != 0:
            token_ids[row], positions[row], slot_mapping[row], context_lens[row] = 0, 0, -1, 0
        return
    position = int32(lengths[slot] - 1)
    if thread == 0:
        token_ids[row] = newest_tokens[slot]
        positions[row] = position
        slot_mapping[row] = tables_of_slots[slot, position // block_size] * block_size + position % block_size
        context_lens[row] = position + 1
    column = thread
    while column <= position // block_size:
        block_tables[row, column] = tables_of_slots[slot, column]
        column += THREADS


def load_rows(slots, state, batch, block_size: int, pads: bool = True, stream=None) -> None:
    """Write the arrays of a decode batch, in place; arguments as in `load_rows_reference`, all NumPy or all on one device."""
    rows = slots.shape[0]
    named = dict(token_ids=batch.token_ids, positions=batch.positions, slot_mapping=batch.slot_mapping, context_lens=batch.context_lens)
    for name, array in (("slots", slots), *named.items()):
        check_array(name, array, INDEX_DTYPES, rows=rows)
    check_array("block_tables", batch.block_tables, INDEX_DTYPES, rows=rows, columns=None)
    columns, width = batch.block_tables.shape[1], state.block_tables.shape[1]
    check(columns <= width, f"block_tables has {columns} columns; it may have up to {width}, as many as those of the slots")
    arrays = (slots, state.newest_tokens, state.lengths, state.block_tables, *named.values(), batch.block_tables)
    launch(load_rows_kernel, rows, THREADS, (*arrays, int(block_size), int(pads)), stream)
