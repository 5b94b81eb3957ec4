"""Conversions between float32, pairs of 16-bit floats, and bits."""

import math
import struct

import numpy as np
from llvmlite import ir

from minllm.machine.numba_cuda import intrinsic, types
from minllm.ptx.instruction import emulated, instruction

WORD, FLOAT, SIX_WORDS, SIX_FLOATS = map(struct.Struct, ("<I", "<f", "<6I", "<6f"))
TWO_WORDS, TWO_FLOATS, TWO_HALVES = map(struct.Struct, ("<II", "<ff", "<ee"))
TIE = 0x8000  # lower half of a float32 midway between two bfloat16


def bfloat16_bits(bits):
    """The bits of a float32 (given as bits) rounded to bfloat16, to nearest, ties to even."""
    if bits & 0x7FFFFFFF > 0x7F800000:
        return 0x7FFF  # NaN
    return bits + 0x7FFF + (bits >> 16 & 1) >> 16


def bfloat16_pair(low, high):
    """The word of two float32 (given as bits) rounded to bfloat16, `low` in the low half."""
    if low & 0x7FFFFFFF > 0x7F800000 or high & 0x7FFFFFFF > 0x7F800000:  # a NaN
        return bfloat16_bits(low) | bfloat16_bits(high) << 16
    return low + 0x7FFF + (low >> 16 & 1) >> 16 | high + 0x7FFF + (high >> 16 & 1) & 0xFFFF0000


def pack_bf16x2(low, high):
    """pack_bf16x2(low, high) -> uint32: two float32 rounded to bfloat16, `low` in the low half. PTX ISA, "cvt.rn.bf16x2.f32"."""
    return bfloat16_pair(*TWO_WORDS.unpack(TWO_FLOATS.pack(low, high)))


def pack_f16x2(low, high):
    """pack_f16x2(low, high) -> uint32: two float32 rounded to float16, `low` in the low half. PTX ISA, "cvt.rn.f16x2.f32"."""
    try:
        return WORD.unpack(TWO_HALVES.pack(low, high))[0]
    except OverflowError:  # too large for float16: infinity
        with np.errstate(over="ignore"):
            return int(np.array([low, high], np.float32).astype(np.float16).view(np.uint32)[0])


def unpack_bf16x2(word):
    """unpack_bf16x2(word) -> (low, high): the two bfloat16 of a word as float32 (a bfloat16 is a float32's upper half)."""
    low, high = TWO_FLOATS.unpack(TWO_WORDS.pack((int(word) & 0xFFFF) << 16, int(word) & 0xFFFF0000))
    return np.float32(low), np.float32(high)


def unpack_f16x2(word):
    """unpack_f16x2(word) -> (low, high): the two float16 of a word as float32. PTX ISA, "cvt.f32.f16"."""
    low, high = TWO_HALVES.unpack(WORD.pack(int(word) & 0xFFFFFFFF))
    return np.float32(low), np.float32(high)


def float_as_uint(x):
    """float_as_uint(x) -> uint32: the bits of a float32."""
    return WORD.unpack(x if type(x) is np.float32 else np.float32(x))[0]  # a NumPy scalar is a buffer of its bytes


def uint_as_float(word):
    """uint_as_float(word) -> the float32 with these bits."""
    packed = WORD.pack(int(word) & 0xFFFFFFFF)
    (value,) = FLOAT.unpack(packed)
    return np.float32(value) if value == value else np.frombuffer(packed, np.float32)[0]  # a Python float may lose the bits of a NaN


def fma_bf16x2(a, b, c):
    """fma_bf16x2(a, b, c) -> uint32: a * b + c of the two bfloat16 in each word, rounded once. PTX ISA, "fma.rn.bf16x2"."""
    a, b, c = int(a), int(b), int(c)
    words = SIX_WORDS.pack(*((half & 0xFFFF) << 16 for word in (a, b, c) for half in (word, word >> 16)))
    a0, a1, b0, b1, c0, c1 = SIX_FLOATS.unpack(words)
    low, high = a0 * b0, a1 * b1  # exact in float64
    try:
        packed = TWO_FLOATS.pack(low + c0, high + c1)
    except OverflowError:  # too large for float32: infinity
        with np.errstate(over="ignore"):
            packed = np.array([low + c0, high + c1]).astype("<f4").tobytes()
    bits0, bits1 = TWO_WORDS.unpack(packed)
    if bits0 & 0xFFFF == TIE:
        bits0 = off_tie(bits0, low, c0)
    if bits1 & 0xFFFF == TIE:
        bits1 = off_tie(bits1, high, c1)
    return bfloat16_pair(bits0, bits1)


def off_tie(bits, product, addend):
    """The bits of product + addend as float32, which lie midway between two bfloat16, moved to the side on which the exact sum lies."""
    (value,) = FLOAT.unpack(WORD.pack(bits))
    error = math.fsum((product, addend, -value))
    return bits if error == 0 else bits + 1 if (error > 0) == (value > 0) else bits - 1


def fma_f16x2(a, b, c):
    """fma_f16x2(a, b, c) -> uint32: a * b + c of the two float16 in each word, rounded once. PTX ISA, "fma.rn.f16x2"."""
    (a0, a1), (b0, b1), (c0, c1) = (TWO_HALVES.unpack(WORD.pack(int(x) & 0xFFFFFFFF)) for x in (a, b, c))
    return pack_f16x2_emulation(a0 * b0 + c0, a1 * b1 + c1)


pack_bf16x2_emulation, pack_f16x2_emulation = pack_bf16x2, pack_f16x2
pack_bf16x2 = instruction("cvt.rn.bf16x2.f32 $0, $2, $1;", "r", "ff", emulation=pack_bf16x2)
pack_f16x2 = instruction("cvt.rn.f16x2.f32 $0, $2, $1;", "r", "ff", emulation=pack_f16x2)
fma_bf16x2 = instruction("fma.rn.bf16x2 $0, $1, $2, $3;", "r", "rrr", emulation=fma_bf16x2)
fma_f16x2 = instruction("fma.rn.f16x2 $0, $1, $2, $3;", "r", "rrr", emulation=fma_f16x2)
unpack_bf16x2 = instruction("{ shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000; }", "ff", "r", emulation=unpack_bf16x2)
unpack_f16x2 = instruction(
    "{ .reg .b16 low, high; mov.b32 {low, high}, $2; cvt.f32.f16 $0, low; cvt.f32.f16 $1, high; }", "ff", "r", emulation=unpack_f16x2
)


def bit_cast(emulation, given, wanted, low_type):
    """An intrinsic that reinterprets the bits of a register as another type."""

    def cast(typing_context, value):
        def lower(context, builder, signature, arguments):
            return builder.bitcast(context.cast(builder, arguments[0], signature.args[0], given), low_type)

        return wanted(value), lower

    cast.__name__ = emulation.__name__
    return emulated(intrinsic(cast), emulation)


float_as_uint = bit_cast(float_as_uint, types.float32, types.uint32, ir.IntType(32))
uint_as_float = bit_cast(uint_as_float, types.uint32, types.float32, ir.FloatType())
