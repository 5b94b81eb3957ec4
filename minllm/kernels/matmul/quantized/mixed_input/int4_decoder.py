"""int4 for mixed-input GEMM: a shift and three instructions turn a pair of codes into a pair of weights.

    w[n, k] = (code[n, k] - zero[n, g]) * scale[n, g]        or code[n, k] * scale[n, g] + minimum[n, g],  g = k // group_size

The weight is rounded to x's dtype once; scale and minimum are rounded before. A word holds the codes of eight inputs;
`word >> 4 t & 0x000F000F` are those of inputs 2 t and 2 t + 1. A lop3 puts 0x4300 above each, which makes it the bfloat16 128 + code
(float16: 0x6400 and 1024); one fma subtracts 128 and the zero point, exactly, and another multiplies by the scale.

Source: Frantar et al. 2024, "MARLIN", section 3.4.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, float32, int32, uint32

from minllm.kernels.matmul.quantized.int4_codes import MIDDLE
from minllm.kernels.matmul.quantized.int4_wgmma import MAGIC
from minllm.kernels.matmul.quantized.mixed_input.decoder import (
    BOTH_ROWS,
    FMA,
    MINUS_ZEROS,
    PACK,
    WORDS,
    Decoder,
    load_nibbles,
    make_load_groups,
    no_table,
)
from minllm.kernels.matmul.quantized.mixed_input.tiling import STEP


class Int4Arrays(NamedTuple):
    """An int4 weight [N, K]: codes [N, K / 2], scales [N, groups], zeros and minimums like scales, or None."""

    codes: Any
    scales: Any
    zeros: Any
    minimums: Any


class Lane(NamedTuple):
    """A lane's rows of weight, and the mask that selects two codes of a word."""

    low: Any
    high: Any
    mask: Any


@cuda.jit(device=True, forceinline=True)
def make_lane(weight, table, low, high, zero):
    """Return the Lane of rows low and high.

    `zero` hides the mask from the compiler, which would load a known one for every pair.
    """
    return Lane(low, high, uint32(0x000F000F) | uint32(zero))


class Group(NamedTuple):
    """The data of a row's group, unconverted: its scale, and its minimum or zero point."""

    scale: Any
    offset: Any


@cuda.jit(device=True, forceinline=True)
def zero_point(zeros, row, group):
    """Return the zero point of a group."""
    return int32(MIDDLE) if zeros is None else int32(zeros[row, group])


@cuda.jit(device=True, forceinline=True)
def load_with_zeros(weight, lane, group):
    """Return the Groups of rows low and high, with zero points."""
    low = Group(weight.scales[lane.low, group], zero_point(weight.zeros, lane.low, group))
    return low, Group(weight.scales[lane.high, group], zero_point(weight.zeros, lane.high, group))


@cuda.jit(device=True, forceinline=True)
def load_with_minimums(weight, lane, group):
    """Return the Groups of rows low and high, with minimums."""
    low = Group(weight.scales[lane.low, group], weight.minimums[lane.low, group])
    return low, Group(weight.scales[lane.high, group], weight.minimums[lane.high, group])


@functools.cache
def make_int4_decoder(dtype: str, group_size: int, has_minimums: bool) -> Decoder:
    """Return the Decoder of int4 weights in groups of 32 or multiples of 64; dtype of x: bfloat16 or float16."""
    parts = max(1, STEP // group_size)
    words_of_part = WORDS // parts
    (bits, offset, ones), pack, fma = MAGIC[dtype], PACK[dtype], FMA[dtype]
    magic = bits << 16 | bits
    minus_offset = int(magic | 0x80008000)

    @cuda.jit(device=True, forceinline=True)
    def make_pair(group, pairs, at):
        added = float32(group.offset) if has_minimums else float32(-offset) - float32(group.offset)
        pairs[at], pairs[at + 1] = pack(added, added), pack(float32(group.scale), float32(group.scale))

    @cuda.jit(device=True, forceinline=True)
    def make_pairs(weight, lane, scales, pairs):
        """pairs[4 * part : 4 * part + 4] = minimum, or -(128 + zero), and scale of row low, then of row high."""
        make_pair(scales[0][0], pairs, 0)
        make_pair(scales[0][1], pairs, 2)
        if parts > 1:
            make_pair(scales[-1][0], pairs, 4)
            make_pair(scales[-1][1], pairs, 6)

    @cuda.jit(device=True, forceinline=True)
    def number(codes, added, scale):
        """Return two codes of a word as two weights."""
        if has_minimums:
            return fma(fma(codes | uint32(magic), uint32(ones), uint32(minus_offset)), scale, added)
        return fma(fma(codes | uint32(magic), uint32(ones), added), scale, uint32(MINUS_ZEROS))

    @cuda.jit(device=True, forceinline=True)
    def decode(memory, line, lane, pairs, numbers):
        """numbers[0 : 16] = a decoded step of both rows."""
        words, t = cuda.local.array(BOTH_ROWS, uint32), uint32(cuda.threadIdx.x) & uint32(3)
        load_nibbles(memory, line, words)
        shift = t << uint32(2)
        for word in range(WORDS):
            at = word // words_of_part * 4
            numbers[2 * word] = number(words[word] >> shift & lane.mask, pairs[at], pairs[at + 1])
            numbers[2 * word + 1] = number(words[WORDS + word] >> shift & lane.mask, pairs[at + 2], pairs[at + 3])

    load_scales = make_load_groups(load_with_minimums if has_minimums else load_with_zeros, group_size)
    return Decoder(Int4Arrays, STEP // 2, 4 * parts, 0, no_table, make_lane, load_scales, make_pairs, decode)
