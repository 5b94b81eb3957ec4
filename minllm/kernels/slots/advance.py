"""The last kernel of a decode step: stores each row's new token in the state of its slot, for the next step.

For a row of slot s with the new token v:

    newest_tokens[s] ← v,   lengths[s] ← lengths[s] + 1,   step[s] ← step[s] + 1
    output_counts[s, v] ← output_counts[s, v] + 1       if the slot has penalties

Padding rows, slot -1, change nothing. A v below 0, of a row from which no token could be chosen, counts as 0: the sequence ends once the
host has read it, and until then every id is one of the vocabulary. No two rows have the same slot. Bytes: 36 per row, 8 more with
penalties. Threads to data: one thread per row.
"""

import numpy as np
from numba import cuda, int32

from minllm.kernels.arguments import INDEX_DTYPES, ceil_div, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.sampling.flags import Adjustment
from minllm.runtime.kernel import kernel, launch

THREADS = 128
PENALTIES = int(Adjustment.PENALTIES)


def advance_reference(tokens: np.ndarray, slots: np.ndarray, state) -> None:
    """Advance the slots of R rows by one token each, in place; tokens, slots int32 [R], slot -1 for padding; state: SlotState."""
    tokens, slots = np.maximum(tokens[slots >= 0], 0), slots[slots >= 0]
    state.newest_tokens[slots] = tokens
    state.lengths[slots] += 1
    state.sampling.advance(slots, tokens)


@kernel(dependent_launch=True)
def advance_kernel(tokens, slots, newest_tokens, lengths, step, adjustments, output_counts):
    """tokens, slots int32 [R]; the others int32 [S], except output_counts [S, vocab] (read only in slots with penalties)."""
    wait_for_predecessors()
    row = int32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
    if row < tokens.shape[0]:
        # exercise: sampling.advance
        slot = slots[row]
        if slot >= 0:
            token = max(tokens[row], 0)
            newest_tokens[slot] = token
            lengths[slot] += 1
            step[slot] += 1
            if adjustments[slot] & PENALTIES:
                output_counts[slot, token] += 1
        # end exercise


def advance(tokens, slots, state, stream=None) -> None:
    """Advance the slots of R rows, in place; arguments as in `advance_reference`, all NumPy or all on one device."""
    rows, sampling = tokens.shape[0], state.sampling
    check_array("tokens", tokens, INDEX_DTYPES, rows=rows)
    check_array("slots", slots, INDEX_DTYPES, rows=rows)
    # A kernel's arguments are always arrays; without output_counts no slot has penalties, and this array is not accessed.
    counts = state.block_tables if sampling.output_counts is None else sampling.output_counts
    arrays = (tokens, slots, state.newest_tokens, state.lengths, sampling.step, sampling.adjustments, counts)
    launch(advance_kernel, ceil_div(rows, THREADS), THREADS, arrays, stream)
