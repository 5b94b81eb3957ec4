"""The mixed-input GEMM's interface to a weight format: how a step of codes becomes numbers in registers.

wgmma's left operand, m64k16, lies in registers: of 16 rows and 16 inputs, lane 4 g + t of a warp holds inputs 2 t, 2 t + 1, 2 t + 8 and
2 t + 9 of rows g and g + 8, two numbers per register: g low, g + 8 low, g high, g + 8 high. A step is four such operands.

A `Lane` is the data that a lane keeps over all steps. Scales arrive with the codes (scales.py), or are loaded by the lanes one step ahead;
then they stay unconverted, so that no instruction waits for them. At the beginning of a step they become pairs of the same 16-bit number.

Source: PTX ISA, "Matrix fragments for wgmma.mma_async.m64nNk16" (A in registers).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import cuda, uint32

from minllm import ptx
from minllm.kernels.matmul.quantized.int4_codes import FLOAT_OF
from minllm.kernels.matmul.quantized.mixed_input.scales import ScaleArray
from minllm.kernels.matmul.quantized.mixed_input.tiling import STEP
from minllm.kernels.vector import load_words

FRAGMENTS = STEP // 4  # registers for a lane's numbers of a step
WORDS = STEP // 8  # words of four-bit codes per row and step
BOTH_ROWS = 2 * WORDS
MINUS_ZEROS = 0x80008000  # a pair of -0: an fma that adds it only multiplies, and keeps the sign of zero
PACK = {"bfloat16": ptx.pack_bf16x2, "float16": ptx.pack_f16x2}
FMA = {"bfloat16": ptx.fma_bf16x2, "float16": ptx.fma_f16x2}


class Decoder(NamedTuple):
    """The arrays, three sizes and the device functions of a format."""

    scales: tuple[ScaleArray, ...]  # the one or two arrays of scales that TMA loads with the codes
    code_bytes: int  # bytes of codes per row and step
    pairs: int  # registers for a lane's scales of a step
    table_bytes: int  # bytes of the table in shared memory, 0 without one
    fill_table: Callable  # (table, weight): all threads fill it before a barrier
    make_lane: Callable  # (weight, table, low, high) -> Lane of rows low and high
    load_ahead: Callable  # (weight, lane, step) -> the lane's scale data for a step that no TMA loads, unconverted
    make_pairs: Callable  # (read) -> make_pairs(lane, ahead, stage, elements, pairs): pairs = the scales as pairs of 16-bit floats;
    # ahead: from load_ahead; stage: its shared address; read, elements: those of ScaleTiles
    decode: Callable  # (memory, line, apart, lane, pairs, numbers): numbers[0 : 16] = a step; line: the word of memory where the lane's row
    # low begins; apart: words from there to row high, a constant, so that it becomes an offset of the loads

    @property
    def row_bytes(self) -> int:
        """Bytes of a stage per row of weight."""
        return self.code_bytes + sum(one.room for one in self.scales)

    @property
    def bytes_of_arrivals(self) -> int:
        """Bytes that TMA loads per row of weight and step."""
        return self.code_bytes + sum(one.bytes for one in self.scales)


@cuda.jit(device=True, forceinline=True)
def unknown_zero():
    """Return 0, which the compiler does not know: a known mask would be moved to a register for every pair that it is applied to."""
    return uint32(ptx.keep_register(uint32(cuda.threadIdx.x)) >> uint32(16))


def make_pair_of(scales: np.dtype, dtype: str):
    """pair_of(word): a scale's bits as a pair of the same number of x's `dtype`; scales: their dtype."""
    float_of, pack = FLOAT_OF[scales.name], PACK[dtype]

    @cuda.jit(device=True, forceinline=True)
    def pair_of(word):
        scale = float_of(word)
        return pack(scale, scale)

    return pair_of


@cuda.jit(device=True, forceinline=True)
def no_table(table, weight):
    """Decoder.fill_table for a format without a table."""


@cuda.jit(device=True, forceinline=True)
def nothing_ahead(weight, lane, step):
    """Decoder.load_ahead for a format whose scales arrive with the codes."""
    return uint32(0)


def make_chunk_at(code_bytes: int):
    """chunk_at(chunk): the word of a lane's rows at which a 16-byte chunk begins. TMA swizzles chunks by the row's place among eight."""
    chunks = code_bytes // 16
    rows_apart = {32: 4, 64: 2}[code_bytes]  # rows after which the swizzle changes

    @cuda.jit(device=True, forceinline=True)
    def chunk_at(chunk):
        swizzle = uint32(cuda.threadIdx.x) // uint32(4 * rows_apart) & uint32(chunks - 1)
        return (uint32(chunk) ^ swizzle) * uint32(4)

    return chunk_at


chunk_of_nibbles_at = make_chunk_at(STEP // 2)


@cuda.jit(device=True, forceinline=True)
def load_nibbles(memory, line, apart, words):
    """words[0 : 16] = the four-bit codes of a step: eight words of row low, then eight of row high."""
    for chunk in range(2):
        at = uint32(line + chunk_of_nibbles_at(chunk))
        load_words(memory, at, words, 4 * chunk)
        load_words(memory, at + uint32(apart), words, WORDS + 4 * chunk)
