"""int4 in groups of inputs that share a scale and, optionally, a zero point or a minimum (W4A16): its equations and its decoders.

    symmetric   scale = half(max |w| / 7)                      code = round(w / scale) + 8       w' = (code - 8) * scale
    with zeros  scale = half((max(w, 0) - min(w, 0)) / 15)     zero = round(-min(w, 0) / scale)
                code = round(w / scale) + zero                 w' = (code - zero) * scale
    minimums    stored by some files                           w' = code * scale + minimum

max and min are those of a group; codes and zeros are 0 to 15. The scale is rounded to float16 before the codes are computed, so that codes
match the stored scale. |w - w'| is at most half a step, except for the rounding of the scale and, with zeros, of the zero point. A
symmetric group leaves the code 0 unused: a scale of max |w| / 7.5 would use it, but would clip the largest numbers to 7 steps, which
shrinks dot products. With groups of 32 a weight takes 4.5 bits, with zeros 4.75.

Two codes share a byte, in an order that a kernel unpacks quickly (reference.py, `pack_nibbles`): `word >> 4 i & 0x000F000F` are the codes
of inputs 2 i and 2 i + 1, 16 bits apart. They become floats without an integer conversion, in one of two ways:

    magic       0x4300 above a nibble makes it the bfloat16 128 + code (float16: 0x6400 and 1024 + code), with an ulp of 1; an fma subtracts
                128 and the zero point, exactly
    subnormal   with an exponent of 0 the lowest bits of a float are a number of units, which tensor cores multiply like any other:
                no subtraction, and the zero point meets the sum of x:   scale * (sum of code * x - zero * sum of x)

Subnormal codes in the lower half of a byte need no shift, and those in the upper half count 16 times as much. In bfloat16 their x is
divided by 16; in float16, where a small x would lose bits, the codes are, which is exact. bfloat16's unit of 2**-133 would leave float32
little room for products, so x is multiplied by 2**64: x of 1.8e19 or more becomes infinite. With x down to 1e-21 products are multiples of
2**-149, which float32 adds exactly. In float16 there are no such limits.

Source: Frantar et al. 2023, "GPTQ", section 4 (the grid, without its error compensation); Lin et al. 2024, "AWQ", equation 1; Frantar et
al. 2024, "MARLIN", section 3.4 (the order of nibbles, and the conversion by magic numbers).
"""

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, uint32

from minllm import ptx
from minllm.kernels.quantization.decoder import (
    FLOAT_OF,
    FMA,
    INPUTS,
    MINUS_ZEROS,
    NO_TABLE,
    PACK,
    STEP,
    Format,
    MmaDecoder,
    Scale,
    ScaleArray,
    TileDecoder,
    make_pair_of,
    nothing_ahead,
    unknown_zero,
    x_as_it_is,
)
from minllm.kernels.quantization.reference import pack_nibbles, unpack_nibbles
from minllm.ptx import unpack_bf16x2
from minllm.runtime.array_protocol import Array
from minllm.runtime.device import AMPERE

LARGEST_CODE, MIDDLE = 15, 8  # MIDDLE: zero point of symmetric groups, which store none
BITS = {"float16": "uint16", "bfloat16": "uint16", "float32": "uint32"}  # integers of the same size; scales are loaded as these
MAGIC = {"bfloat16": (0x4300, 0x3F803F80), "float16": (0x6400, 0x3C003C00)}  # bits above a nibble that make it 128, or 1024, + code; ones
SIGNS = 0x80008000  # the sign bits of a pair
NIBBLES = 0x000F000F
EVEN, ODD = 0x5F805F80, 0x5D805D80  # pairs of the bfloat16 2**64 and 2**60
SIXTEENTHS = 0x2C002C00  # a pair of the float16 1 / 16


class Int4Weight(NamedTuple):
    """An int4 matrix [outputs, inputs], two codes per byte.

    A kernel computes neighbouring outputs at once, so the scales of a group's outputs are neighbours in memory.
    """

    codes: Any  # uint8 [outputs, inputs / 2]
    scales: Any  # float [groups, outputs]; float16 if quantised while loading
    zeros: Any = None  # uint8 [groups, outputs]; None: all are MIDDLE
    minimums: Any = None  # float [groups, outputs], used in place of zeros; or None

    @classmethod
    def of_rows(
        cls, codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None = None, minimums: np.ndarray | None = None
    ) -> "Int4Weight":
        """The weight with these scales, zeros and minimums [outputs, groups], which are transposed."""
        return cls(codes, *(None if one is None else np.ascontiguousarray(one.T) for one in (scales, zeros, minimums)))


def quantize_int4(rows: np.ndarray, group_size: int, has_zeros: bool) -> tuple[np.ndarray, ...]:
    """(codes, scales) of rows [rows, inputs], or (codes, scales, zeros): the arguments of Int4Weight.of_rows."""
    groups = rows.astype(np.float32).reshape(len(rows), -1, group_size)
    if has_zeros:
        low, high = groups.min(axis=2, initial=0), groups.max(axis=2, initial=0)
        scales = (high - low) * np.float32(1 / LARGEST_CODE)
    else:
        scales = np.abs(groups).max(axis=2) * np.float32(1 / (LARGEST_CODE - MIDDLE))
    with np.errstate(over="ignore", invalid="ignore"):  # check_scales refuses infinity and NaN
        scales = scales.astype(np.float16)
        wide = scales.astype(np.float32)
        inverse = np.divide(np.float32(1), wide, out=np.zeros_like(wide), where=wide > 0)
        zeros = np.clip(np.rint(-low * inverse), 0, LARGEST_CODE) if has_zeros else np.full_like(wide, MIDDLE)
        codes = np.clip(np.rint(groups * inverse[..., None]) + zeros[..., None], 0, LARGEST_CODE).astype(np.uint8)
        packed = pack_nibbles(codes.reshape(rows.shape))
        return (packed, scales, zeros.astype(np.uint8)) if has_zeros else (packed, scales)


def dequantize_int4_reference(weight: Int4Weight) -> np.ndarray:
    """(code - zero) * scale, or code * scale + minimum; float32 [outputs, inputs]."""
    codes = unpack_nibbles(weight.codes).astype(np.float32).reshape(*weight.scales.T.shape, -1)
    scales = weight.scales.T.astype(np.float32)[..., None]
    if weight.minimums is not None:
        return (codes * scales + weight.minimums.T.astype(np.float32)[..., None]).reshape(len(codes), -1)
    zeros = MIDDLE if weight.zeros is None else weight.zeros.T.astype(np.float32)[..., None]
    return ((codes - zeros) * scales).reshape(len(codes), -1)


@cuda.jit(device=True)
def unpack_int4(word, zero, values, at):
    """values[at : at + 8] = the eight codes of a word, minus `zero`."""
    for i in range(4):
        low, high = unpack_bf16x2((word >> uint32(4 * i) & uint32(0x000F000F)) | uint32(0x43004300))
        values[at + 2 * i], values[at + 2 * i + 1] = low - (float32(128) + zero), high - (float32(128) + zero)


@cuda.jit(device=True)
def zero_point(zeros, minimums, group, n):
    """Return the number to subtract from the codes of a group: its zero point, 8 without zeros, or 0 with minimums."""
    if minimums is not None:
        return float32(0)
    if zeros is not None:
        return float32(zeros[group, n])
    return float32(MIDDLE)


class Int4Arrays(NamedTuple):
    """An int4 weight [N, K]: codes [N * K / 2], scales [groups * N] as unsigned integers of their bits, zeros [groups * N] or None,
    minimums like scales or None; N."""

    codes: Array
    scales: Array
    zeros: Array
    minimums: Array
    outputs: int


def int4_arrays(weight: Int4Weight) -> Int4Arrays:
    """The arrays of a weight."""
    flat = (None if one is None else one.reshape(-1) for one in weight)
    codes, scales, zeros, minimums = flat
    bits = BITS[scales.dtype.name]
    return Int4Arrays(codes, scales.view(bits), zeros, None if minimums is None else minimums.view(bits), weight.codes.shape[0])


class Int4Kind(NamedTuple):
    """Inputs per group, and the dtypes of scales, zeros and minimums, None for absent ones."""

    group_size: int
    scales: np.dtype
    zeros: np.dtype | None
    minimums: np.dtype | None


def int4_kind(weight: Int4Weight, k: int) -> Int4Kind:
    """The kind of a weight with rows of k numbers."""
    arrays = weight.scales, weight.zeros, weight.minimums
    return Int4Kind(k // weight.scales.shape[0], *(None if one is None else one.dtype for one in arrays))


def takes_int4(k: int, weight: Int4Weight) -> bool:
    """Whether groups are of 32, 64 or a multiple of 128 inputs, and minimums, if any, of the scales' dtype."""
    group_size, dtype, _, minimums = int4_kind(weight, k)
    known = dtype.name in BITS and minimums in (None, dtype)
    return known and weight.scales.shape[1] == weight.codes.shape[0] and (group_size in (32, 64) or group_size % INPUTS == 0)


UNITS = {"bfloat16": 2.0**-69, "float16": 2.0**-24}  # the product of code 1 as a subnormal number and x = 1


@cuda.jit(device=True, forceinline=True)
def keep_nothing(weight, row):
    """Decoders' `begin` for a format without data per row."""
    return uint32(0)


@cuda.jit(device=True, forceinline=True)
def pair_of_codes_in_place(decoding, word, i):
    """Return codes 2 i and 2 i + 1 of a word as subnormal numbers, which count 16 times as much if i is odd."""
    return word >> uint32(8 * (i // 2)) & uint32(NIBBLES << 4 * (i % 2))


@cuda.jit(device=True, forceinline=True)
def pair_of_codes(decoding, word, i):
    """Return codes 2 i and 2 i + 1 of a word as subnormal float16, which all count the same."""
    pair = pair_of_codes_in_place(decoding, word, i)
    return ptx.fma_f16x2(pair, uint32(SIXTEENTHS), uint32(MINUS_ZEROS)) if i % 2 else pair


@cuda.jit(device=True, forceinline=True)
def pair_of_scaled_x(word, i):
    """Return a pair of bfloat16 times 2**64, or 2**60 if i is odd, exactly."""
    return ptx.fma_bf16x2(word, uint32(ODD if i % 2 else EVEN), uint32(MINUS_ZEROS))


PAIRS = {"bfloat16": (pair_of_codes_in_place, pair_of_scaled_x), "float16": (pair_of_codes, x_as_it_is)}  # MmaDecoder.pair and pair_of_x


def make_add(has_zeros: bool, has_minimums: bool):
    """Return MmaDecoder.add for groups with zeros, with minimums, or symmetric."""

    @cuda.jit(device=True, forceinline=True)
    def add(total, factor, offset, codes_times_x, x):
        if has_minimums:
            return total + factor * codes_times_x + offset * x
        if has_zeros:
            return total + factor * (codes_times_x - offset * x)
        return total + factor * (codes_times_x - float32(MIDDLE) * x)

    return add


@functools.cache
def make_mma_decoder(dtype: str, threads: int, group_size: int, scales: np.dtype, zeros, minimums) -> MmaDecoder:
    """For up to 16 rows of x; groups of 32, 64 or a multiple of 128."""
    float_of, unit, has_zeros, has_minimums = FLOAT_OF[scales.name], UNITS[dtype], zeros is not None, minimums is not None
    steps_of_a_group, per_unit = max(1, group_size // INPUTS), 1 / unit

    @cuda.jit(device=True, forceinline=True)
    def load(weight, row, kept, group, words, at):
        place = uint32(group * uint32(weight.outputs) + row)
        words[at] = uint32(weight.scales[place])
        if has_zeros:
            words[at + 1] = uint32(weight.zeros[place])
        if has_minimums:
            words[at + 1] = uint32(weight.minimums[place])

    @cuda.jit(device=True, forceinline=True)
    def load_of_step(weight, row, kept, step, words, at):
        load(weight, row, kept, uint32(step // uint32(steps_of_a_group)), words, at)

    @cuda.jit(device=True, forceinline=True)
    def scale(decoding, kept, words, at):
        factor, offset = float_of(words[at]) * float32(per_unit), float32(0)
        if has_minimums:
            offset = float_of(words[at + 1])
        if has_zeros:
            offset = float32(words[at + 1])
        return Scale(factor, offset)

    has_offsets, load_group = has_zeros or has_minimums, load if group_size <= INPUTS else load_of_step
    return MmaDecoder(
        max(1, INPUTS // group_size), 1 + has_offsets, NO_TABLE, 1.0 if has_minimums else unit, has_offsets, keep_nothing, load_group,
        scale, *PAIRS[dtype], make_add(has_zeros, has_minimums),
    )  # fmt: skip


class Lane(NamedTuple):
    """The mask that selects two codes of a word, and the shift to the lane's codes."""

    mask: int
    shift: int


@cuda.jit(device=True, forceinline=True)
def make_lane(weight, table, low, high):
    """Return the Lane."""
    return Lane(uint32(0x000F000F + unknown_zero()), (uint32(cuda.threadIdx.x) & uint32(3)) << uint32(2))


def make_offset(dtype: str, minimums: np.dtype | None, has_zeros: bool):
    """offset(word): the pair to add to two codes: a minimum, or -(128 + zero), or 1024; word: its bits."""
    minus_codes = MAGIC[dtype][0] * 0x10001 | SIGNS

    @cuda.jit(device=True, forceinline=True)
    def minus_zero(word):
        zero = word & uint32(255)
        return uint32(zero | zero << uint32(16) | uint32(minus_codes))

    @cuda.jit(device=True, forceinline=True)
    def minus_middle(word):
        return uint32(MIDDLE * 0x10001 | minus_codes)

    return make_pair_of(minimums, dtype) if minimums is not None else minus_zero if has_zeros else minus_middle


def make_number(dtype: str, has_minimums: bool = False):
    """number(codes, added, scale): two nibbles as two weights, rounded to `dtype` once.

    added, scale: pairs of -(128 + zero), or of minimums, and of scales.
    """
    (bits, ones), fma = MAGIC[dtype], FMA[dtype]
    magic = bits * 0x10001

    @cuda.jit(device=True, forceinline=True)
    def number(codes, added, scale):
        if has_minimums:
            return fma(fma(codes | uint32(magic), uint32(ones), uint32(magic | SIGNS)), scale, added)
        return fma(fma(codes | uint32(magic), uint32(ones), added), scale, uint32(MINUS_ZEROS))

    return number


@functools.cache
def make_pairs_of_eight(dtype: str):
    """Format.pairs_of_eight. The scale is rounded before."""
    pack, number = PACK[dtype], make_number(dtype)
    minus_codes = MAGIC[dtype][0] * 0x10001 | SIGNS | MIDDLE * 0x10001  # -(128 + 8), or -(1024 + 8) in float16

    @cuda.jit(device=True, forceinline=True)
    def pairs_of_eight(words, eight, scale):
        word, both, mask, minus = words[eight], pack(scale, scale), uint32(NIBBLES), uint32(minus_codes)
        low, high = number(word & mask, minus, both), number(word >> uint32(4) & mask, minus, both)
        return low, high, number(word >> uint32(8) & mask, minus, both), number(word >> uint32(12) & mask, minus, both)

    return pairs_of_eight


@functools.cache
def make_tile_decoder(dtype: str, group_size: int, scales: np.dtype, zeros: np.dtype | None, minimums: np.dtype | None) -> TileDecoder:
    """For tiles; groups of 32 or multiples of 64. The weight is rounded to x's dtype once; scale and minimum are rounded before."""
    arrays = tuple(ScaleArray(one, group_size) for one in (scales, zeros, minimums) if one is not None)
    parts, has_two = arrays[0].groups, len(arrays) == 2
    scale_of, offset_of = make_pair_of(scales, dtype), make_offset(dtype, minimums, zeros is not None)
    number_of = make_number(dtype, minimums is not None)

    def make_pairs(read):
        @cuda.jit(device=True, forceinline=True)
        def pairs_of_step(lane, ahead, stage, elements, pairs):
            """pairs[4 * part : 4 * part + 4] = minimum, or -(128 + zero), and scale of row low, then of row high."""
            for part in range(parts):
                for high in range(2):
                    offset = read(stage, elements, 1, part, high) if has_two else uint32(0)
                    pairs[4 * part + 2 * high] = offset_of(offset)
                    pairs[4 * part + 2 * high + 1] = scale_of(read(stage, elements, 0, part, high))

        return pairs_of_step

    @cuda.jit(device=True, forceinline=True)
    def number(word, lane, pairs, at):
        return number_of(word >> lane.shift & lane.mask, pairs[at], pairs[at + 1])

    return TileDecoder(arrays, STEP // 2, 2, NO_TABLE, make_lane, nothing_ahead, make_pairs, number)


INT4 = Format(
    "int4", Int4Weight, quantize_int4, dequantize_int4_reference, 2, AMPERE, unpack_int4, takes_int4, int4_arrays, int4_kind, MIDDLE,
    make_pairs_of_eight, mma=make_mma_decoder, tiles=make_tile_decoder,
)  # fmt: skip
