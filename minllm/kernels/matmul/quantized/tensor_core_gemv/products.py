"""The interface of a warp's products, which one_row.py and several_rows.py make of codes as 16-bit numbers, and codes.py of W8A8.

mma.sync multiplies 16 rows of weight by 8 columns of x. Lane 4 g + t holds numbers of rows g and g + 8 of weight ("low" and "high"), of
column g of x, and sums of columns 2 t and 2 t + 1. The order of k is free in a sum over k, so a lane loads adjacent bytes of codes of both
rows, and takes the same inputs of x. Scales are loaded a chunk of steps before they are used, and stay unconverted until then, so that no
instruction waits for them.

Source: PTX ISA, "Matrix fragments for mma.m16n8k16" and "for mma.m16n8k32".
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from numba import cuda, uint32

from minllm.kernels.quantization.decoder import Table
from minllm.runtime.array_protocol import Array


class Products(NamedTuple):
    """The sizes and device functions of a format's products, for one K."""

    steps: int  # steps per row
    pieces: int  # loads into which a lane's 16 bytes of codes are divided
    x_bytes: int  # bytes of x in shared memory
    words: int  # registers for the data of scales that a lane loads for a chunk
    values: int  # registers for Registers.values
    sum_type: Any  # type of mma.sync's sums
    table: Table
    prepare: Callable  # (x, norm, epsilon, rank, memory) -> factor of the final sums; writes x to shared memory, and ends with a barrier
    begin: Callable  # (weight, row) -> `kept`, the format's data of a row of weight
    loads: int  # a lane's loads of scales per chunk
    load_scales: Callable  # (index, weight, rows, kept, first, words): the index-th of these loads
    convert: Callable  # (decoding, kept, registers): before a chunk of several rows
    multiply: Callable  # (u, memory, decoding, registers, step): multiplies a step, the u-th of those in flight
    group: int  # one row: steps whose sums the four lanes of a row divide among themselves, to scale them; several rows: 0
    scale: Callable  # (index, memory, decoding, kept, registers, first): adds the scaled sums of the index-th such group to the totals
    finish: Callable  # one row: (kept, total, factor) -> (low, high), the final sums of a lane's rows


class Registers(NamedTuple):
    """A lane's registers: the codes in flight, the data of their scales, and its totals, of row low and high for each token.

    values: of several rows the Scales of a chunk; of one row the sums of a step that are not scaled yet, two of each row of weight.
    """

    codes: Array
    words: Array
    values: Array
    total: Array


@cuda.jit(device=True, forceinline=True)
def keep_nothing(weight, row):
    """Products.begin for a format without data per row."""
    return uint32(0)


@cuda.jit(device=True, forceinline=True)
def load_nothing(index, weight, rows, kept, first, words):
    """Products.load_scales."""


@cuda.jit(device=True, forceinline=True)
def convert_nothing(decoding, kept, registers):
    """Products.convert."""


@cuda.jit(device=True, forceinline=True)
def scale_nothing(index, memory, decoding, kept, registers, first):
    """Products.scale."""


@cuda.jit(device=True, forceinline=True)
def finish_nothing(kept, total, factor):
    """Products.finish."""
    return total[0], total[2]
