"""What the batched GEMV has to know of a format: how codes become mma.sync's operand A, and which scales belong to a group.

Lane 4 g + t of a warp has numbers of the rows g and g + 8 of a tile ("low" and "high"). mma.sync adds its products in any order of k, so
a lane takes, of each group in a step of 128 inputs, neighbouring bytes of codes: 16 of the one group, 8 of each of two, or 4 of each of
four. Word w of a step, w = 0 to 3, then belongs to one group, and so do the two mma.sync that multiply its eight codes.

What belongs to a group, its scale above all, is loaded by one of the four lanes of a row, long before the step: as it lies in memory, so
that no instruction waits for it. Before its step it becomes a Scale, and a shuffle passes that on.

Source: PTX ISA, "Matrix fragments for mma.m16n8k16".
"""

from typing import Any, NamedTuple

from numba import cuda


class Decoder(NamedTuple):
    """The sizes and device functions of a format, for one K."""

    groups: int  # of a step that have scales of their own: 1, 2 or 4
    words: int  # registers for what is loaded of a group
    table_bytes: int  # of a table in shared memory, 0 without one
    unit: float  # of sums, which are multiplied by its inverse in the end
    has_sums: bool  # whether `add` needs sums of x
    has_offsets: bool  # whether it needs an offset per group
    begin_block: Any  # (table, weight) -> what `pair` and `scale` take: a table, which all threads fill before a barrier, or nothing
    begin: Any  # (weight, row) -> what the format keeps of a row
    load: Any  # (weight, row, kept, group, words, at): words[at : at + self.words] = what belongs to a group of a row; groups of more
    # than a step are counted by steps
    scale: Any  # (decoding, kept, words, at) -> Scale, made of these words
    pair: Any  # (decoding, word, i) -> numbers of codes 2 i and 2 i + 1 of a word, as a register of two 16-bit floats
    pair_of_x: Any  # (word, i) -> the inputs that these multiply, from x as it is
    add: Any  # (total, factor, offset, sum, sum_of_x) -> total + what a group adds, whose numbers * x have this sum


class Scale(NamedTuple):
    """A group's scale, and its offset."""

    factor: Any
    offset: Any


@cuda.jit(device=True, forceinline=True)
def x_as_it_is(word, i):
    """pair_of_x of a format whose numbers need no other."""
    return word
