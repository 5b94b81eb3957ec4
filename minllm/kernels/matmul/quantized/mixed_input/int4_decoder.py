"""int4 for mixed-input GEMM: a shift and three instructions make a pair of codes a pair of weights.

    w[n, k] = (code[n, k] - zero[n, g]) * scale[n, g]        or code[n, k] * scale[n, g] + minimum[n, g],  g = k // group_size

rounded to x's dtype once, scale and minimum before. A word holds the codes of eight inputs; `word >> 4 t & 0x000F000F` are those of inputs
2 t and 2 t + 1. A lop3 puts 0x4300 before each, which makes it the bfloat16 128 + code (float16: 0x6400 and 1024); one fma subtracts that
and the zero point, exactly, and another multiplies.

Source: Frantar et al. 2024, "MARLIN", section 3.4.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, float32, uint32

from minllm.kernels.matmul.quantized.int4_wgmma import MAGIC, MIDDLE
from minllm.kernels.matmul.quantized.mixed_input.decoder import FMA, MINUS_ZEROS, PACK, Decoder, make_load_chunk
from minllm.kernels.matmul.quantized.mixed_input.tiling import STEP

CODE_BYTES, WORDS, BOTH_ROWS = STEP // 2, STEP // 8, STEP // 4  # of a row in a step; words of two rows
load_chunk = make_load_chunk(CODE_BYTES)


class Lane(NamedTuple):
    """A lane's rows of weight, and the mask that picks two codes of a word."""

    low: Any
    high: Any
    mask: Any


@cuda.jit(device=True, forceinline=True)
def fill_table(table, weight, thread):
    """int4 needs none."""


@cuda.jit(device=True, forceinline=True)
def make_lane(weight, table, low, high, zero):
    """A mask that the compiler knows is loaded for every pair."""
    return Lane(low, high, uint32(0x000F000F) | uint32(zero))


@cuda.jit(device=True, forceinline=True)
def offset_of(zeros, minimums, row, group):
    """What belongs to a group besides its scale: a minimum, or a zero point."""
    if minimums is not None:
        return float32(minimums[row, group])
    if zeros is not None:
        return float32(zeros[row, group])
    return float32(MIDDLE)


@functools.cache
def make_int4_decoder(dtype: str, group_size: int, has_minimums: bool) -> Decoder:
    """The Decoder of weights in groups of 32 or multiples of 64; dtype: bfloat16 or float16."""
    parts = max(1, STEP // group_size)
    words_of_part = WORDS // parts
    (bits, offset, ones), pack, fma = MAGIC[dtype], PACK[dtype], FMA[dtype]
    magic = bits << 16 | bits
    minus_offset = int(magic | 0x80008000)

    @cuda.jit(device=True, forceinline=True)
    def load_scales(weight, lane, step, values):
        """values[4 * part + ...] = offset and scale of row low, and of row high, in the groups of a step, or in the last group."""
        scales = weight.scales
        for part in range(parts):
            group = min(uint32((uint32(step) * uint32(STEP) + uint32(part * 32)) // uint32(group_size)), uint32(scales.shape[1] - 1))
            values[4 * part + 1], values[4 * part + 3] = float32(scales[lane.low, group]), float32(scales[lane.high, group])
            values[4 * part] = offset_of(weight.zeros, weight.minimums, lane.low, group)
            values[4 * part + 2] = offset_of(weight.zeros, weight.minimums, lane.high, group)

    @cuda.jit(device=True, forceinline=True)
    def make_pairs(values, pairs):
        """pairs[4 * part + ...] = the minimum, or -(128 + zero), and the scale of row low, and of row high."""
        for part in range(parts):
            for row in range(2):
                at = 4 * part + 2 * row
                added, scale = values[at] if has_minimums else float32(-offset) - values[at], values[at + 1]
                pairs[at], pairs[at + 1] = pack(added, added), pack(scale, scale)

    @cuda.jit(device=True, forceinline=True)
    def number(codes, added, scale):
        """Two codes of a word as weights."""
        if has_minimums:
            return fma(fma(codes | uint32(magic), uint32(ones), uint32(minus_offset)), scale, added)
        return fma(fma(codes | uint32(magic), uint32(ones), added), scale, uint32(MINUS_ZEROS))

    @cuda.jit(device=True, forceinline=True)
    def decode(memory, line, lane, pairs, numbers):
        """numbers[0 : 16] = a step of both rows."""
        words, t = cuda.local.array(BOTH_ROWS, uint32), uint32(cuda.threadIdx.x) & uint32(3)
        for chunk in range(CODE_BYTES // 16):
            load_chunk(memory, line, chunk, words, 4 * chunk, WORDS + 4 * chunk)
        shift = t << uint32(2)
        for word in range(WORDS):
            at = word // words_of_part * 4
            numbers[2 * word] = number(words[word] >> shift & lane.mask, pairs[at], pairs[at + 1])
            numbers[2 * word + 1] = number(words[WORDS + word] >> shift & lane.mask, pairs[at + 2], pairs[at + 3])

    return Decoder(CODE_BYTES, 4 * parts, 0, fill_table, make_lane, load_scales, make_pairs, decode)
