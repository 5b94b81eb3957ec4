"""Approximate functions (SFU), reciprocals, maxima, byte permutation, funnel shift, and dot products of four bytes."""

import math
import struct

import numpy as np

from minllm.ptx.instruction import instruction

INFINITY, ZERO = np.float32(np.inf), np.float32(0)
SMALLEST_NORMAL = 2.0**-126  # the smallest normal float32
TWO_WORDS, FOUR_HALVES, EIGHT_BYTES = map(struct.Struct, ("<2I", "<4e", "<8b"))


def two_words(first, second):
    """The 8 bytes of two 32-bit words, little-endian, `first` first."""
    return TWO_WORDS.pack(int(first) & 0xFFFFFFFF, int(second) & 0xFFFFFFFF)


def ex2(x):
    """ex2(x) -> 2**x, float32, about 2 ulp; denormals flush to zero. PTX ISA, "ex2.approx.ftz.f32"."""
    x = float(x)
    return INFINITY if x >= 128 else ZERO if x < -126 else np.float32(math.exp2(x))


def rcp(x):
    """rcp(x) -> 1/x, float32, about 1 ulp; denormal x and results flush to zero. PTX ISA, "rcp.approx.ftz.f32"."""
    x = float(x)
    if abs(x) < SMALLEST_NORMAL:
        return np.float32(math.copysign(math.inf, x))
    return np.float32(math.copysign(0, x) if abs(x) > 1 / SMALLEST_NORMAL else 1 / x)


def rcp_rn(x):
    """rcp_rn(x) -> 1/x, float32, correctly rounded, as NumPy divides. PTX ISA, "rcp.rn.f32"."""
    with np.errstate(divide="ignore"):
        return np.float32(1) / np.float32(x)


def tanh_approx(x):
    """tanh_approx(x) -> tanh(x), float32, relative error about 2**-11. PTX ISA, "tanh.approx.f32"."""
    return np.float32(np.tanh(np.float64(x)))


def prmt(low, high, selector):
    """prmt(low, high, selector) -> uint32: four of the eight bytes of high:low, one per nibble of the selector. A nibble of 8 or more
    gives eight copies of the sign bit of byte nibble - 8. PTX ISA, "prmt"."""
    pool, selector = two_words(low, high), int(selector)
    if selector & 0x8888:
        pool += bytes(255 * (byte >> 7) for byte in pool)
    return pool[selector & 15] | pool[selector >> 4 & 15] << 8 | pool[selector >> 8 & 15] << 16 | pool[selector >> 12 & 15] << 24


def shf_l_wrap(low, high, shift):
    """shf_l_wrap(low, high, shift) -> uint32: the upper word of high:low shifted left by shift modulo 32; with low == high the word is
    rotated. PTX ISA, "shf.l.wrap"."""
    pair = (int(low) & 0xFFFFFFFF) | (int(high) & 0xFFFFFFFF) << 32
    return pair << (int(shift) & 31) >> 32 & 0xFFFFFFFF


def max_f16x2(a, b):
    """max_f16x2(a, b) -> uint32: element-wise maximum of two pairs of float16; +0 is larger than -0, and the maximum of a number and NaN
    is the number. PTX ISA, "max.f16x2"."""
    a, b = int(a), int(b)
    a0, a1, b0, b1 = FOUR_HALVES.unpack(two_words(a, b))
    low = a & b if a0 == b0 else a if a0 > b0 or b0 != b0 else b  # equal numbers differ at most in the sign of zero
    high = a & b if a1 == b1 else a if a1 > b1 or b1 != b1 else b
    return low & 0xFFFF | high & 0xFFFF0000


def dp4a(a, b, c):
    """dp4a(a, b, c) -> uint32: the dot product of two vectors of four int8, plus c, in two's complement if negative. PTX ISA,
    "dp4a.s32.s32"."""
    a0, a1, a2, a3, b0, b1, b2, b3 = EIGHT_BYTES.unpack(two_words(a, b))
    return a0 * b0 + a1 * b1 + a2 * b2 + a3 * b3 + int(c) & 0xFFFFFFFF


def dp4a_u32(a, b, c):
    """dp4a_u32(a, b, c) -> uint32: the dot product of two vectors of four uint8, plus c, modulo 2**32. PTX ISA, "dp4a.u32.u32"."""
    pairs = np.array([int(a) & 0xFFFFFFFF, int(b) & 0xFFFFFFFF], np.uint32).view(np.uint8).astype(np.int64)
    return (int(pairs[:4] @ pairs[4:]) + int(c)) & 0xFFFFFFFF


ex2 = instruction("ex2.approx.ftz.f32 $0, $1;", "f", "f", emulation=ex2)
rcp = instruction("rcp.approx.ftz.f32 $0, $1;", "f", "f", emulation=rcp)
rcp_rn = instruction("rcp.rn.f32 $0, $1;", "f", "f", emulation=rcp_rn)
tanh_approx = instruction("tanh.approx.f32 $0, $1;", "f", "f", emulation=tanh_approx)
max_f16x2 = instruction("max.f16x2 $0, $1, $2;", "r", "rr", emulation=max_f16x2)
prmt = instruction("prmt.b32 $0, $1, $2, $3;", "r", "rrr", emulation=prmt)
shf_l_wrap = instruction("shf.l.wrap.b32 $0, $1, $2, $3;", "r", "rrr", emulation=shf_l_wrap)
dp4a = instruction("dp4a.s32.s32 $0, $1, $2, $3;", "r", "rrr", emulation=dp4a)
dp4a_u32 = instruction("dp4a.u32.u32 $0, $1, $2, $3;", "r", "rrr", emulation=dp4a_u32)
