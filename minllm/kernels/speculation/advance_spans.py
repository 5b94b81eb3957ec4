"""The last kernel of a verification: stores the new tokens of each run in the state of its slot, for the next step.

For a run of slot s with the new tokens t_0 .. t_(c-1):

    token_history[s, lengths[s] + i] ← t_i,   newest_tokens[s] ← t_(c-1),   lengths[s] ← lengths[s] + c,   step[s] ← step[s] + c
    output_counts[s, t_i] ← output_counts[s, t_i] + 1       if the slot has penalties

A token below 0, the last of its run, counts as 0 (slots/advance.py). Wrong drafts leave no trace: the next step overwrites their keys and
values. Threads to data: one thread per row; that of a run's first row does the work.
"""

import numpy as np
from numba import cuda, int32

from minllm.kernels.arguments import INDEX_DTYPES, ceil_div, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.sampling.flags import Adjustment
from minllm.kernels.slots.state import SlotState
from minllm.kernels.speculation.state import DraftState
from minllm.runtime.kernel import kernel, launch

THREADS = 128
PENALTIES = int(Adjustment.PENALTIES)


def advance_spans_reference(tokens: np.ndarray, counts: np.ndarray, slots: np.ndarray, state: SlotState, drafts: DraftState) -> None:
    """Advance the slots of R rows, in place. tokens int32 [R]: the new tokens of each run, in its first rows; counts int32 [R]: their
    number, as in accept.py."""
    for row in np.flatnonzero(counts):
        slot, new = slots[row], np.maximum(tokens[row : row + counts[row]], 0)
        start, width = state.lengths[slot], drafts.token_history.shape[1]
        drafts.token_history[slot, start : start + len(new)] = new[: max(0, width - start)]
        state.newest_tokens[slot] = new[-1]
        state.lengths[slot] += len(new)
        for token in new:
            state.sampling.advance(slots[row : row + 1], np.array([token]))


@kernel(dependent_launch=True)
def advance_spans_kernel(tokens, counts, slots, newest_tokens, lengths, token_history, step, adjustments, output_counts):
    """tokens, counts, slots int32 [R]; newest_tokens, lengths, step, adjustments int32 [S]; token_history int32 [S, W];
    output_counts int32 [S, vocab] (read only in slots with penalties)."""
    wait_for_predecessors()
    row = int32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
    if row < slots.shape[0] and counts[row] > 0:
        slot, count = slots[row], counts[row]
        length = lengths[slot]
        for i in range(count):
            token = max(tokens[row + i], 0)
            if length + i < token_history.shape[1]:
                token_history[slot, length + i] = token
            if adjustments[slot] & PENALTIES:
                output_counts[slot, token] += 1
        newest_tokens[slot] = max(tokens[row + count - 1], 0)
        lengths[slot] = length + count
        step[slot] += count


def advance_spans(tokens, counts, slots, state: SlotState, drafts: DraftState, stream=None) -> None:
    """Advance the slots in place; arguments as in `advance_spans_reference`, all NumPy or all on one device."""
    rows, sampling = slots.shape[0], state.sampling
    for name, array in (("tokens", tokens), ("counts", counts), ("slots", slots)):
        check_array(name, array, INDEX_DTYPES, rows=rows)
    check_array("token_history", drafts.token_history, INDEX_DTYPES, slots=state.lengths.shape[0], tokens=None)
    # A kernel's arguments are always arrays; without output_counts no slot has penalties, and this array is not accessed.
    output_counts = state.block_tables if sampling.output_counts is None else sampling.output_counts
    of_slots = (state.newest_tokens, state.lengths, drafts.token_history, sampling.step, sampling.adjustments, output_counts)
    launch(advance_spans_kernel, ceil_div(rows, THREADS), THREADS, (tokens, counts, slots, *of_slots), stream)
