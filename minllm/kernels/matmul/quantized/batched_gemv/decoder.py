"""The batched GEMV's interface to a weight format: codes as mma.sync's operand A, and scales of groups.

Lane 4 g + t of a warp holds numbers of rows g and g + 8 of a tile ("low" and "high"). The order of k is free in a sum over k, so a lane
loads adjacent bytes of codes from each group in a step of 128 inputs: 16 bytes of one group, 8 of each of two, or 4 of each of four. Each
word w of a step, w = 0 to 3, then belongs to one group, and so do the two mma.sync that multiply its eight codes.

One of the four lanes of a row loads the data of a group, its scale above all, long before the step. The lane keeps them unconverted, so
that no instruction waits for the load, converts them to a Scale before the step, and passes that on by a shuffle.

Source: PTX ISA, "Matrix fragments for mma.m16n8k16".
"""

from collections.abc import Callable
from typing import NamedTuple

from numba import cuda


class Decoder(NamedTuple):
    """The sizes and device functions of a format, for one K."""

    groups: int  # groups per step with their own scales: 1, 2 or 4
    words: int  # registers for the loaded data of a group
    table_bytes: int  # bytes of the table in shared memory, 0 without one
    unit: float  # unit of the sums; the final sums are multiplied by its inverse
    has_sums: bool  # whether `add` needs sums of x
    has_offsets: bool  # whether `add` needs an offset per group
    begin_block: Callable  # (table, weight) -> `decoding` for `pair` and `scale`; all threads fill the table, if any, before a barrier
    begin: Callable  # (weight, row) -> `kept`, the format's data of a row
    load: Callable  # (weight, row, kept, group, words, at): words[at : at + self.words] = the data of a group of a row; if a group is
    # longer than a step, `group` is the number of the step
    scale: Callable  # (decoding, kept, words, at) -> the Scale in these words
    pair: Callable  # (decoding, word, i) -> the numbers of codes 2 i and 2 i + 1 of a word, as a register of two 16-bit floats
    pair_of_x: Callable  # (word, i) -> the two inputs that pair i multiplies, from a word of unmodified x
    add: Callable  # (total, factor, offset, sum, sum_of_x) -> total plus a group's contribution; sum: of the group's numbers times x


class Scale(NamedTuple):
    """A group's scale, and its offset: zero point, minimum, or 0."""

    factor: float
    offset: float


@cuda.jit(device=True, forceinline=True)
def x_as_it_is(word, i):
    """Decoder.pair_of_x for formats that take x unchanged."""
    return word
