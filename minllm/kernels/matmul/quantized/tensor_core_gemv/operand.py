"""The tensor-core GEMV's operands: codes become operand A of mma.sync, and x operand B.

mma.sync multiplies 16 rows of weight by 8 columns. Lane 4 g + t holds numbers of rows g and g + 8 ("low" and "high"), and of column g of x.
The order of k is free in a sum over k, so a lane loads 16 adjacent bytes of codes of both rows, quarter t of a step, and takes the same
inputs of x. With one row of x all columns are equal, unless groups divide a step: then column g holds only the inputs of part g % parts,
and zeros elsewhere, so that the columns of the result are the sums of the parts, each with its own scale.

Scales and zero points are loaded `unroll` steps before they are used, and stay unconverted until then, so that no instruction waits for
them.

Source: PTX ISA, "Matrix fragments for mma.m16n8k16" and "for mma.m16n8k32".
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from minllm.kernels.quantization.decoder import Table
from minllm.runtime.array_protocol import Array

CODE_WORDS = 8  # registers for a lane's codes of a step


class Operand(NamedTuple):
    """The sizes and device functions of a format, for one K."""

    steps: int  # steps per row
    row_bytes: int  # bytes of codes per row
    group: int  # steps per group; the four lanes of a row divide the steps of a group, to scale the sums
    words: int  # registers per group for scale data
    x_bytes: int  # bytes of x in shared memory
    table: Table
    sum_type: Any  # type of mma.sync's sums
    prepare: Callable  # (x, norm, epsilon, memory) -> factor of the final sums; writes x to shared memory, and ends with a barrier
    begin: Callable  # (weight, rows) -> `kept`, the format's data of two rows of weight
    own_step: Callable  # () -> the step of a group for which a lane scales the sums
    load: Callable  # (weight, rows, kept, step, words, at): words[at : at + self.words] = the scale data of a step
    multiply: Callable  # (memory, decoder, held, u, step, sums): multiplies a step, the u-th of those in Held
    scale: Callable  # (memory, decoder, kept, held, index, step, sums): adds the scaled sums of a lane's step of a group to its total
    finish: Callable  # (kept, total, factor) -> (low, high), the final sums of the two rows


class Held(NamedTuple):
    """The steps in flight, in registers: CODE_WORDS words of codes per step, four of row low and four of row high, and the operand's
    `words` of scale data per group."""

    codes: Array
    scales: Array


class Sums(NamedTuple):
    """A lane's sums, two of row low and two of row high: totals over K, and the unscaled sums of its step of a group."""

    total: Array
    unscaled: Array


class Rows(NamedTuple):
    """A lane's two rows of weight."""

    low: int
    high: int
