"""int4 for mixed-input GEMM: a shift and three instructions turn a pair of codes into a pair of weights.

    w[n, k] = (code[n, k] - zero[n, g]) * scale[n, g]        or code[n, k] * scale[n, g] + minimum[n, g],  g = k // group_size

The weight is rounded to x's dtype once; scale and minimum are rounded before. A word holds the codes of eight inputs;
`word >> 4 t & 0x000F000F` are those of inputs 2 t and 2 t + 1. A lop3 puts 0x4300 above each, which makes it the bfloat16 128 + code
(float16: 0x6400 and 1024); one fma subtracts 128 and the zero point, exactly, and another multiplies by the scale.

Source: Frantar et al. 2024, "MARLIN", section 3.4.
"""

import functools
from typing import NamedTuple

import numpy as np
from numba import cuda, uint32

from minllm.kernels.matmul.quantized.int4_codes import MAGIC, MIDDLE
from minllm.kernels.matmul.quantized.mixed_input.decoder import (
    BOTH_ROWS,
    FMA,
    MINUS_ZEROS,
    WORDS,
    Decoder,
    load_nibbles,
    make_pair_of,
    no_table,
    nothing_ahead,
    unknown_zero,
)
from minllm.kernels.matmul.quantized.mixed_input.gemm import make_gated_gemm, make_gemm
from minllm.kernels.matmul.quantized.mixed_input.scales import ScaleArray
from minllm.kernels.matmul.quantized.mixed_input.tiling import STEP

SIGNS = 0x80008000  # the sign bits of a pair


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


@functools.cache
def make_int4_decoder(dtype: str, group_size: int, scales: np.dtype, zeros: np.dtype | None, minimums: np.dtype | None) -> Decoder:
    """Return the Decoder of int4 weights in groups of 32 or multiples of 64.

    dtype of x: bfloat16 or float16. scales, zeros, minimums: dtypes of these arrays, or None for absent ones.
    """
    arrays = tuple(ScaleArray(one, group_size) for one in (scales, zeros, minimums) if one is not None)
    parts, has_minimums, has_two = arrays[0].groups, minimums is not None, len(arrays) == 2
    words_of_part = WORDS // parts
    (bits, ones), fma, scale_of = MAGIC[dtype], FMA[dtype], make_pair_of(scales, dtype)
    magic, offset_of = bits * 0x10001, make_offset(dtype, minimums, zeros is not None)

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
    def number(codes, added, scale):
        """Return two codes of a word as two weights."""
        if has_minimums:
            return fma(fma(codes | uint32(magic), uint32(ones), uint32(magic | SIGNS)), scale, added)
        return fma(fma(codes | uint32(magic), uint32(ones), added), scale, uint32(MINUS_ZEROS))

    @cuda.jit(device=True, forceinline=True)
    def decode(memory, line, apart, lane, pairs, numbers):
        """numbers[0 : 16] = a decoded step of both rows."""
        words = cuda.local.array(BOTH_ROWS, uint32)
        load_nibbles(memory, line, apart, words)
        for word in range(WORDS):
            at = word // words_of_part * 4
            numbers[2 * word] = number(words[word] >> lane.shift & lane.mask, pairs[at], pairs[at + 1])
            numbers[2 * word + 1] = number(words[WORDS + word] >> lane.shift & lane.mask, pairs[at + 2], pairs[at + 3])

    return Decoder(arrays, STEP // 2, 4 * parts, 0, no_table, make_lane, nothing_ahead, make_pairs, decode)


def decoder_of(x, weight) -> tuple[Decoder, None]:
    """Return the Decoder of an Int4Weight; its lanes load no arrays."""
    kinds = (None if one is None else one.dtype for one in (weight.scales, weight.zeros, weight.minimums))
    return make_int4_decoder(x.dtype.name, x.shape[1] // weight.scales.shape[0], *kinds), None


int4_gemm, gated_int4_gemm = make_gemm(decoder_of), make_gated_gemm(decoder_of)
