"""From 8- and 4-bit codes to operands of tensor cores, in registers: one instruction for two numbers (split_quantized.py).

ldmatrix knows 16-bit elements only. Of codes it hands a lane words of four bytes, or eight nibbles, where it would hand out two 16-bit
numbers: of K (its rows as they lie) neighbouring channels of one key, of V (transposed) the same few channels of two keys. Which channel
goes to which row or column of mma is free, as long as the queries and the output know: so every word becomes operands where it is, without
any exchange between lanes.

    int8      prmt puts each byte below a byte of zeros: that is the float16 code * 2**-24, exactly: float16's smallest numbers, the
              denormal ones, are integers times 2**-24, and tensor cores take them like any others
    int4      one AND cuts out two nibbles that lie 16 bits from each other; those of the upper half of a byte are 16 times as large
    fp8_e4m3  an instruction of its own, cvt.rn.f16x2.e4m3x2
    fp8_e5m2  is the upper half of a float16: prmt again

Factors like 2**24 cost nothing: they belong to the scales of whole products (split_code_tile.py). FLOPs: none. Numbers become float16, as
it holds all of them exactly; so queries and weights are float16 too.
"""

import functools
from dataclasses import dataclass
from typing import Any

from numba import cuda, int32, uint32

from minllm.ptx import e4m3x2_to_f16x2, prmt

DENORMAL = 2.0**-24  # what the lowest bit of a float16 is worth where all bits above are zeros
NIBBLES, UPPER_NIBBLES = 0x000F000F, 0x00F000F0
SWAP_MIDDLE = 0x3120  # bytes 0, 2, 1, 3


@dataclass(frozen=True)
class CodeOperands:
    """How one format's words become operands.

    steps: mma steps of 16 channels in a chunk of 16 bytes. unit: what a code of 1 becomes; upper_factor: how many times as much in the
    last step of a chunk. Device functions, for step `part` of a chunk: key_operands(a, words, at, part) and value_operands(...) make the
    four words of A from words[at] and words[at + 1], of the first and the last eight keys; query_channel(step, half, lane) is the first
    of the two channels that word `half` of B holds; value_channel(step, half, lane) is the channel of row lane // 4 + 8 * half of D.
    """

    steps: int
    unit: float
    upper_factor: float
    key_operands: Any
    value_operands: Any
    query_channel: Any
    value_channel: Any


@functools.cache
def make_byte_operands(unit, first_pair, second_pair, even_pair, odd_pair):
    """CodeOperands of bytes that prmt makes numbers of, given the selectors for bytes 0 and 1, 2 and 3, 0 and 2, 1 and 3."""

    @cuda.jit(device=True)
    def key_operands(a, words, at, part):
        for row in range(2):
            a[row] = prmt(words[at + row], uint32(0), uint32(first_pair))
            a[2 + row] = prmt(words[at + row], uint32(0), uint32(second_pair))

    @cuda.jit(device=True)
    def value_operands(a, words, at, part):
        for half in range(2):
            a[2 * half] = prmt(words[at + half], uint32(0), uint32(even_pair))
            a[2 * half + 1] = prmt(words[at + half], uint32(0), uint32(odd_pair))

    return CodeOperands(1, unit, 1.0, key_operands, value_operands, query_channel_of_bytes, value_channel_of_bytes)


@cuda.jit(device=True)
def query_channel_of_bytes(step, half, lane):
    """Lane t of a row has bytes 4t to 4t + 3: the two words of B."""
    return int32(16 * step + 4 * (lane % 4) + 2 * half)


@cuda.jit(device=True)
def value_channel_of_bytes(step, half, lane):
    """A 16-bit element is two channels: the even ones become rows 0 to 7, the odd ones rows 8 to 15."""
    return int32(16 * step + 2 * (lane // 4) + half)


@cuda.jit(device=True)
def e4m3_key_operands(a, words, at, part):
    """Neighbouring bytes are converted together."""
    for row in range(2):
        a[row] = e4m3x2_to_f16x2(words[at + row])
        a[2 + row] = e4m3x2_to_f16x2(words[at + row] >> uint32(16))


@cuda.jit(device=True)
def e4m3_value_operands(a, words, at, part):
    """Bytes of one channel are brought together first."""
    for half in range(2):
        word = prmt(words[at + half], uint32(0), uint32(SWAP_MIDDLE))
        a[2 * half] = e4m3x2_to_f16x2(word)
        a[2 * half + 1] = e4m3x2_to_f16x2(word >> uint32(16))


@cuda.jit(device=True)
def nibbles(word, part):
    """Two nibbles as float16: the lower ones of bytes 0 and 2, or, 16 times as large, the upper ones."""
    return uint32(word & uint32(UPPER_NIBBLES if part else NIBBLES))


@cuda.jit(device=True)
def nibble_key_operands(a, words, at, part):
    """Nibbles that lie 16 bits from each other: of the first and the third byte, then of the second and the fourth."""
    for row in range(2):
        a[row] = nibbles(words[at + row], part)
        a[2 + row] = nibbles(words[at + row] >> uint32(8), part)


@cuda.jit(device=True)
def nibble_value_operands(a, words, at, part):
    """The same, where the halves of a word are two keys."""
    for half in range(2):
        a[2 * half] = nibbles(words[at + half], part)
        a[2 * half + 1] = nibbles(words[at + half] >> uint32(8), part)


@cuda.jit(device=True)
def query_channel_of_nibbles(step, half, lane):
    """Lane t of a row has the eight channels from 8t on, in quantization/reference.py's order: neighbours lie 16 bits from each other."""
    return int32(32 * (step // 2) + 8 * (lane % 4) + 2 * (step % 2) + 4 * half)


@cuda.jit(device=True)
def value_channel_of_nibbles(step, half, lane):
    """A 16-bit element is four channels, every second one of eight: nibbles 0 and 2 are rows of an even step, 1 and 3 of an odd one."""
    row = lane // 4
    return int32(32 * (step // 2) + 8 * (row // 2) + row % 2 + 4 * half + 2 * (step % 2))


def operands_of(name):
    """CodeOperands of a format by its name (kernels/quantization/formats.py)."""
    if name == "int8":
        return make_byte_operands(DENORMAL, 0x4140, 0x4342, 0x4240, 0x4341)
    if name == "fp8_e5m2":
        return make_byte_operands(1.0, 0x1404, 0x3424, 0x2404, 0x3414)
    if name == "fp8_e4m3":
        channels = (query_channel_of_bytes, value_channel_of_bytes)
        return CodeOperands(1, 1.0, 1.0, e4m3_key_operands, e4m3_value_operands, *channels)
    channels = (query_channel_of_nibbles, value_channel_of_nibbles)
    return CodeOperands(2, DENORMAL, 16.0, nibble_key_operands, nibble_value_operands, *channels)
