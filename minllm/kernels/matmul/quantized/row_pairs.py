"""Which two rows of weight a lane multiplies: mma.sync's operand A has 16 rows, eight "low" ones and eight "high" ones.

    plain   rows 16 i + j and 16 i + j + 8
    gated   a row of the gate and the row of up that it gates

Source: PTX ISA, "Matrix fragments for mma.m16n8k16".
"""

from numba import cuda, int32

PAIRS = 8  # row pairs per tile of 16 rows


@cuda.jit(device=True, forceinline=True)
def plain_column(pair):
    """Return the column of out that belongs to the first row of a pair."""
    return int32((pair >> 3) * 16 + (pair & 7))


@cuda.jit(device=True, forceinline=True)
def gated_rows(pair, rows):
    """Return a row of the gate, in the first half of weight, and the matching row of up."""
    low = min(int32(pair), int32((rows >> 1) - 1))
    return low, int32(low + (rows >> 1))
