"""What the GEMV on tensor cores has to know of a format of weights: how codes become operand A of mma.sync, and x operand B.

mma.sync multiplies 16 rows of weight by 8 columns. Lane 4 g + t has numbers of rows g and g + 8 ("low" and "high"), and of column g of x.
It adds its products in any order of k, so a lane loads 16 neighbouring bytes of codes of both rows, a step's quarter t, and takes the same
inputs of x. With one row of x all columns are equal, except where groups divide a step: then column g holds the inputs of part
g % parts alone and zeros elsewhere, so that the columns of the result are the sums of the parts, each with its own scale.

Scales and zero points are loaded `unroll` steps before they are used, and stay as they are loaded, so that no instruction waits for them.

Source: PTX ISA, "Matrix fragments for mma.m16n8k16" and "for mma.m16n8k32".
"""

from typing import Any, NamedTuple

from numba import cuda, int32, uint32

from minllm import ptx

ROW_BYTES, LANE_BYTES = 64, 16  # of a step's codes of a row, and a lane's share
CODE_WORDS = 8  # registers of a lane's codes of a step


class Operand(NamedTuple):
    """The sizes and device functions of a format, for one K."""

    steps: int  # of a row
    row_bytes: int  # of a row's codes
    group: int  # steps whose sums the four lanes of a row share among themselves, to scale them
    words: int  # registers per group for what belongs to the scales
    x_bytes: int  # of x in shared memory
    table_bytes: int  # of a table in shared memory, 0 without one
    sum_type: Any  # of mma.sync
    fill: Any  # (table, weight): all threads fill the table before a barrier
    prepare: Any  # (x, norm, epsilon, memory) -> what sums are multiplied by; writes x to shared memory, and ends with a barrier
    decoder: Any  # (table) -> what the codes of a lane are decoded with, after the barrier
    begin: Any  # (weight, rows) -> what the format keeps of two rows of weight
    own_step: Any  # () -> the step of a group whose sums a lane scales
    load: Any  # (weight, rows, kept, step, words, at): words[at : at + self.words] = what the scales of a step need
    multiply: Any  # (memory, decoder, held, u, step, sums): the products of a step, the u-th of those that are Held
    scale: Any  # (memory, decoder, kept, held, index, step, sums): adds those of a lane's step of a group to its total
    finish: Any  # (kept, total, factor) -> (low, high), the sums of the two rows


class Held(NamedTuple):
    """Arrays in registers of the steps in flight: CODE_WORDS words of codes per step, four of row low and four of row high, and the
    operand's `words` of scales per group."""

    codes: Any
    scales: Any


class Sums(NamedTuple):
    """A lane's sums, two of row low and two of row high: over K, and those of its step of a group before they are scaled."""

    total: Any
    unscaled: Any


class Rows(NamedTuple):
    """A lane's two rows of weight."""

    low: Any
    high: Any


@cuda.jit(device=True, forceinline=True)
def fill_nothing(table, weight):
    """fill of a format without a table."""


@cuda.jit(device=True, forceinline=True)
def no_decoder(table):
    """decoder of a format without a table."""
    return uint32(0)


@cuda.jit(device=True, forceinline=True)
def load_nothing(weight, rows, kept, step, words, at):
    """load of a format with a scale per row."""


@cuda.jit(device=True, forceinline=True)
def keep_nothing(weight, rows):
    """begin of a format that needs nothing but the Rows."""
    return rows.low


BITS = {"float16": "uint16", "bfloat16": "uint16", "float32": "uint32"}  # dtypes of the same size, as which scales are loaded


@cuda.jit(device=True, forceinline=True)
def float_of_float16(word):
    """The float16 whose bits a word holds, as float32."""
    return ptx.unpack_f16x2(word)[0]


@cuda.jit(device=True, forceinline=True)
def float_of_bfloat16(word):
    """The bfloat16 whose bits a word holds, as float32."""
    return ptx.uint_as_float(word << uint32(16))


@cuda.jit(device=True, forceinline=True)
def float_of_float32(word):
    """The float32 whose bits a word holds."""
    return ptx.uint_as_float(word)


FLOAT_OF = {"float16": float_of_float16, "bfloat16": float_of_bfloat16, "float32": float_of_float32}


@cuda.jit(device=True, forceinline=True)
def first_step():
    """own_step of a format that scales no groups."""
    return int32(0)


@cuda.jit(device=True, forceinline=True)
def scale_nothing(memory, decoder, kept, held, index, step, sums):
    """scale of a format with a scale per row."""
