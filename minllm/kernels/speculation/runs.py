"""Runs: neighbouring rows of one slot.

The rows that verify a sequence's drafts are a run; a plain decode step is a run of one row. Row r of a run that begins at row f computes
the token at offset r - f: the newest token at offset 0, then the drafts. Slot -1 is padding.
"""

import numpy as np
from numba import cuda, int32


def runs_of(slots: np.ndarray) -> list[tuple[int, int]]:
    """(first row, number of rows) of each run, without padding; slots int32 [R]."""
    starts = [row for row in range(len(slots)) if row == 0 or slots[row] != slots[row - 1] or slots[row] < 0]
    ends = starts[1:] + [len(slots)]
    return [(start, end - start) for start, end in zip(starts, ends, strict=True) if slots[start] >= 0]


@cuda.jit(device=True)
def begins_run(slots, row):
    """Whether a row is the first of a run; false for padding."""
    return slots[row] >= 0 and (row == 0 or slots[row - 1] != slots[row])


@cuda.jit(device=True)
def run_length(slots, first):
    """The number of rows of the run that begins at row `first`."""
    count = int32(1)
    while first + count < slots.shape[0] and slots[first + count] == slots[first]:
        count += int32(1)
    return count


@cuda.jit(device=True)
def offset_in_run(slots, row):
    """The offset of a row in its run."""
    offset = int32(0)
    while row - offset > 0 and slots[row - offset - 1] == slots[row]:
        offset += int32(1)
    return offset
