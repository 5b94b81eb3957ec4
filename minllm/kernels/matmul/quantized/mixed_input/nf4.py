"""NF4 for mixed-input GEMM: a table of 256 pairs turns a byte of two codes into a register of two numbers.

    w[n, k] = table[code[n, k]] * absmax[n, k // 64]          both and their product are rounded to x's dtype         absmax: nf4.py

Byte t of a word has the codes of inputs 2 t and 2 t + 1, which are those that lane t needs. A dp4a turns the byte into an address
(nf4_pairs.py), a load fetches the pair from shared memory, and an fma multiplies it by absmax. A step of 64 inputs is one NF4 block: its
absmax arrives with the codes, and its nested scale is loaded a step ahead.
"""

import functools
from typing import NamedTuple

import numpy as np
from numba import cuda, uint32

from minllm import ptx
from minllm.kernels.matmul.quantized.mixed_input.decoder import (
    BOTH_ROWS,
    FMA,
    MINUS_ZEROS,
    PACK,
    WORDS,
    Decoder,
    load_nibbles,
    nothing_ahead,
)
from minllm.kernels.matmul.quantized.mixed_input.gemm import make_gated_gemm, make_gemm
from minllm.kernels.matmul.quantized.mixed_input.scales import ScaleArray
from minllm.kernels.matmul.quantized.mixed_input.tiling import STEP
from minllm.kernels.matmul.quantized.nf4 import NESTED_SHIFT, Nf4Arrays
from minllm.kernels.matmul.quantized.nf4_pairs import ENTRY_BYTES, TABLE_BYTES, make_fill_tables, mapped, tables_at
from minllm.runtime.array_protocol import Array


class Row(NamedTuple):
    """A row of weight: the number of its first block, and the offset added to its absmax."""

    first_block: int
    offset: float


class Lane(NamedTuple):
    """A lane's rows of weight, its Tables, and the entry size shifted to its byte."""

    low: Row
    high: Row
    tables: Array
    entry: int


@cuda.jit(device=True, forceinline=True)
def row_of(weight, number):
    """Return the Row of this number."""
    return Row(uint32(weight.first_blocks[number]), weight.offsets[number])


@cuda.jit(device=True, forceinline=True)
def make_lane(weight, table, low, high):
    """Return the Lane of rows low and high."""
    entry = uint32(uint32(ENTRY_BYTES) << ((uint32(cuda.threadIdx.x) & uint32(3)) << uint32(3)))
    return Lane(row_of(weight, low), row_of(weight, high), tables_at(table), entry)


@cuda.jit(device=True, forceinline=True)
def nested_scale(weight, row, step):
    """Return the nested scale of a step's block; past the end of the weight the last one."""
    number = uint32(uint32(row.first_block + uint32(step)) >> uint32(NESTED_SHIFT))
    return weight.nested[min(number, uint32(weight.nested.shape[0] - 1))]


@cuda.jit(device=True, forceinline=True)
def load_nested(weight, lane, step):
    """Return the nested scales of a step's blocks, in rows low and high."""
    return nested_scale(weight, lane.low, step), nested_scale(weight, lane.high, step)


@functools.cache
def make_nf4_decoder(dtype: str, is_nested: bool) -> Decoder:
    """Return the Decoder of NF4 weights, with or without double quantisation; dtype of x: bfloat16 or float16."""
    absmax = ScaleArray(np.dtype(np.uint8 if is_nested else np.float32), STEP)
    fill, pack, fma = make_fill_tables(dtype), PACK[dtype], FMA[dtype]

    def make_pairs(read):
        @cuda.jit(device=True, forceinline=True)
        def nested_absmax(lane, ahead, stage, elements, pairs):
            """pairs[0 : 2] = the absmax of rows low and high; ahead: their nested scales."""
            codes = read(stage, elements, 0, 0, 0) & uint32(255), read(stage, elements, 0, 0, 1) & uint32(255)
            low = mapped(lane.tables, codes[0]) * ahead[0] + lane.low.offset
            high = mapped(lane.tables, codes[1]) * ahead[1] + lane.high.offset
            pairs[0], pairs[1] = pack(low, low), pack(high, high)

        @cuda.jit(device=True, forceinline=True)
        def stored_absmax(lane, ahead, stage, elements, pairs):
            """pairs[0 : 2] = the absmax of rows low and high."""
            low, high = ptx.uint_as_float(read(stage, elements, 0, 0, 0)), ptx.uint_as_float(read(stage, elements, 0, 0, 1))
            pairs[0], pairs[1] = pack(low, low), pack(high, high)

        return nested_absmax if is_nested else stored_absmax

    @cuda.jit(device=True, forceinline=True)
    def number(word, lane, scale):
        """Return the two numbers of the lane's byte of a word, times absmax."""
        return fma(ptx.load_shared_32(ptx.dp4a_u32(word, lane.entry, lane.tables.pairs)), scale, uint32(MINUS_ZEROS))

    @cuda.jit(device=True, forceinline=True)
    def decode(memory, line, apart, lane, pairs, numbers):
        """numbers[0 : 16] = a decoded step of both rows."""
        words = cuda.local.array(BOTH_ROWS, uint32)
        load_nibbles(memory, line, apart, words)
        for word in range(WORDS):
            numbers[2 * word] = number(words[word], lane, pairs[0])
            numbers[2 * word + 1] = number(words[WORDS + word], lane, pairs[1])

    load_ahead = load_nested if is_nested else nothing_ahead
    return Decoder((absmax,), STEP // 2, 2, TABLE_BYTES, fill, make_lane, load_ahead, make_pairs, decode)


def decoder_of(x, weight) -> tuple[Decoder, Nf4Arrays]:
    """Return the Decoder of an Nf4Weight, and the arrays that its lanes load."""
    return make_nf4_decoder(x.dtype.name, weight.nested is not None), Nf4Arrays(*weight, len(weight.codes))


nf4_gemm, gated_nf4_gemm = make_gemm(decoder_of), make_gated_gemm(decoder_of)
