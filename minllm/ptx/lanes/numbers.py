"""Arithmetic and conversions of numbers. Where a NaN or an infinity needs more than NumPy gives, the emulation computes lane by lane."""

import functools
import math

import numpy as np

from minllm.ptx import arithmetic, convert, convert_fp8
from minllm.ptx.lanes.form import in_lanes
from minllm.sim.lanes.masks import VECTOR, some

ALL = 0xFFFFFFFF
NAN_OF_BFLOAT16 = 0x7FFF


def vectors(instruction, has_doubts=False):
    """Attach the form of a function of numbers, which is called if an operand is a vector.

    has_doubts: whether the form returns (result, the lanes for which the emulation decides).
    """

    def attach(form):
        emulation = instruction.emulation

        @functools.wraps(form)
        def call(lanes, *operands):
            if not any(type(one) is VECTOR for one in operands):
                return lanes.each(emulation, *operands)
            if not has_doubts:
                return form(*operands)
            found, doubtful = form(*operands)
            before, here = lanes.mask, doubtful if lanes.mask is None else doubtful & lanes.mask
            if some(here):
                lanes.mask = here
                found = lanes.put(found, lanes.each(emulation, *operands))
                lanes.mask = before
            return found

        return in_lanes(instruction)(call)

    return attach


def bits_of(x):
    """The bits of float32 as integers."""
    return np.asarray(x, np.float32).view(np.uint32).astype(np.int64)


def floats_of(bits):
    """float32 of these bits."""
    return (np.asarray(bits) & ALL).astype(np.uint32).view(np.float32)


def halves_of(word):
    """The two float16 of words, as float64."""
    word = np.asarray(word)
    return [(word >> shift & 0xFFFF).astype(np.uint16).view(np.float16).astype(np.float64) for shift in (0, 16)]


@vectors(arithmetic.ex2)
def ex2(x):
    """2**x; results below the normal numbers are 0."""
    wide = np.clip(x.astype(np.float64), -127, 128)
    found = np.fromiter(map(math.exp2, wide.tolist()), np.float64, x.size).astype(np.float32)
    return np.where(x >= 128, arithmetic.INFINITY, np.where(x < -126, arithmetic.ZERO, found))


@vectors(arithmetic.rcp)
def rcp(x):
    """1 / x; denormal arguments and results count as 0."""
    wide = x.astype(np.float64)
    found = np.where(abs(wide) > 1 / arithmetic.SMALLEST_NORMAL, np.copysign(0.0, wide), 1 / wide)
    return np.where(abs(wide) < arithmetic.SMALLEST_NORMAL, np.copysign(np.inf, wide), found).astype(np.float32)


@vectors(arithmetic.rcp_rn)
def rcp_rn(x):
    """1 / x, rounded to the nearest float32."""
    return np.float32(1) / x.astype(np.float32)


@vectors(arithmetic.tanh_approx)
def tanh_approx(x):
    """tanh(x), computed in float64."""
    return np.tanh(x.astype(np.float64)).astype(np.float32)


@vectors(arithmetic.prmt)
def prmt(low, high, selector):
    """Four bytes of two words, chosen by the selector's nibbles; a nibble of 8 or more repeats the byte's sign."""
    low, high, selector = (np.asarray(one).astype(np.int64) for one in (low, high, selector))  # an operand may be uint64
    pool, found = (low & ALL) | (high & ALL) << 32, 0
    for number in range(4):
        nibble = selector >> 4 * number & 15
        byte = pool >> 8 * (nibble & 7) & 255
        found = found | np.where(nibble >= 8, 255 * (byte >> 7), byte) << 8 * number
    return found


@vectors(arithmetic.shf_l_wrap)
def shf_l_wrap(low, high, shift):
    """The upper word of two after a shift to the left by shift % 32 bits."""
    shift = shift & 31
    return ((high & ALL) << shift | (low & ALL) >> 32 - shift) & ALL


def bytes_of(word, signed):
    """The four bytes of words as integers."""
    found = [word >> shift & 255 for shift in (0, 8, 16, 24)]
    return [(one ^ 128) - 128 for one in found] if signed else found


@vectors(arithmetic.dp4a)
def dp4a(a, b, c):
    """c plus the dot product of four signed bytes."""
    return sum(x * y for x, y in zip(bytes_of(a, True), bytes_of(b, True))) + c & ALL


@vectors(arithmetic.dp4a_u32)
def dp4a_u32(a, b, c):
    """c plus the dot product of four unsigned bytes."""
    return sum(x * y for x, y in zip(bytes_of(a, False), bytes_of(b, False))) + c & ALL


@vectors(convert.float_as_uint)
def float_as_uint(x):
    """The bits of float32."""
    return bits_of(x)


@vectors(convert.uint_as_float)
def uint_as_float(word):
    """float32 of these bits."""
    return floats_of(word)


def bfloat16_bits(bits):
    """The bits of float32 rounded to bfloat16."""
    return np.where(bits & 0x7FFFFFFF > 0x7F800000, NAN_OF_BFLOAT16, bits + 0x7FFF + (bits >> 16 & 1) >> 16)


@vectors(convert.pack_bf16x2)
def pack_bf16x2(low, high):
    """Two float32 as bfloat16 in a word."""
    return bfloat16_bits(bits_of(low)) | bfloat16_bits(bits_of(high)) << 16


def halves_as_word(low, high):
    """(a word of two float16, where one of them is not finite)."""
    word = low.view(np.uint16).astype(np.int64) | high.view(np.uint16).astype(np.int64) << 16
    return word, ~(np.isfinite(low) & np.isfinite(high))


@vectors(convert.pack_f16x2, has_doubts=True)
def pack_f16x2(low, high):
    """Two float32 as float16 in a word; the emulation decides where one is not finite there."""
    return halves_as_word(*(np.asarray(one, np.float32).astype(np.float16) for one in (low, high)))


@vectors(convert.unpack_bf16x2, has_doubts=True)
def unpack_bf16x2(word):
    """The two bfloat16 of a word as float32; the emulation decides the bits of NaNs."""
    low, high = floats_of((word & 0xFFFF) << 16), floats_of(word & 0xFFFF0000)
    return (low, high), np.isnan(low) | np.isnan(high)


@vectors(convert.unpack_f16x2, has_doubts=True)
def unpack_f16x2(word):
    """The two float16 of a word as float32; the emulation decides the bits of NaNs."""
    low, high = (one.astype(np.float32) for one in halves_of(word))
    return (low, high), np.isnan(low) | np.isnan(high)


@vectors(convert.fma_f16x2, has_doubts=True)
def fma_f16x2(a, b, c):
    """a * b + c of pairs of float16, rounded once; the emulation decides where a result is not finite."""
    return halves_as_word(*((x * y + z).astype(np.float16) for x, y, z in zip(*map(halves_of, (a, b, c)))))


@vectors(convert.fma_bf16x2, has_doubts=True)
def fma_bf16x2(a, b, c):
    """a * b + c of pairs of bfloat16, rounded once; the emulation decides where a result is not finite or lies half-way between two."""
    found, doubtful = [], False
    for part in (lambda word: (word & 0xFFFF) << 16, lambda word: word & 0xFFFF0000):
        x, y, z = (floats_of(part(np.asarray(word))).astype(np.float64) for word in (a, b, c))
        total = (x * y + z).astype(np.float32)
        bits = bits_of(total)
        doubtful = doubtful | (bits & 0xFFFF == convert.TIE) | ~np.isfinite(total)
        found.append(bfloat16_bits(bits))
    return found[0] | found[1] << 16, doubtful


def attach_fp8(pack, unpack, dtype):
    """Attach the forms of the conversions between two float32 and a word with two numbers of an 8-bit format."""
    values = np.array(convert_fp8.AS_FLOAT32[dtype])
    vectors(pack)(lambda low, high: convert_fp8.joined(low, high, dtype))
    vectors(unpack)(lambda word: (values[word & 255], values[word >> 8 & 255]))


attach_fp8(convert_fp8.pack_e4m3x2, convert_fp8.unpack_e4m3x2, convert_fp8.E4M3)
attach_fp8(convert_fp8.pack_e5m2x2, convert_fp8.unpack_e5m2x2, convert_fp8.E5M2)


@vectors(convert_fp8.pack_e4m3x4)
def pack_e4m3x4(value0, value1, value2, value3):
    """Four float32 as e4m3 in a word."""
    return convert_fp8.joined(value0, value1, convert_fp8.E4M3) | convert_fp8.joined(value2, value3, convert_fp8.E4M3) << 16


@vectors(convert_fp8.e4m3x2_to_f16x2)
def e4m3x2_to_f16x2(word):
    """Two e4m3 as float16 in a word."""
    halves = np.array(convert_fp8.E4M3_AS_FLOAT16)
    return halves[word & 255] | halves[word >> 8 & 255] << 16
