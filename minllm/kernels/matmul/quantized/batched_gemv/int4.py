"""int4 (W4A16) for the batched GEMV: a shift and a lop3 make a pair of codes a pair of 16-bit floats, offset + code.

    scale * (code - zero)   = scale * (offset + code) - (offset + zero) * scale
    scale * code + minimum  = scale * (offset + code) + minimum - offset * scale

so the sum over a group is that of its biased codes times x, and that of x, each with a factor.

Source: Frantar et al. 2024, "MARLIN", section 3.4 (the conversion).
"""

import functools

from numba import cuda, float32, uint32

from minllm.kernels.matmul.quantized.batched_gemv.decoder import Decoder, Scale
from minllm.kernels.matmul.quantized.batched_gemv.tiling import INPUTS
from minllm.kernels.matmul.quantized.int4_tma_consumer import OFFSETS, make_pair_of_codes
from minllm.kernels.matmul.quantized.tensor_core_gemv.int4 import MIDDLE
from minllm.kernels.matmul.quantized.tensor_core_gemv.operand import FLOAT_OF


@functools.cache
def make_int4_decoder(dtype: str, k: int, group_size: int, scale_dtype: str, has_zeros: bool, has_minimums: bool) -> Decoder:
    """The Decoder of weights in groups of 32, 64 or a multiple of 128."""
    offset, groups_of_a_row, float_of = OFFSETS[dtype], k // group_size, FLOAT_OF[scale_dtype]
    codes_mask, value, pair_of_codes = 0x000F000F << offset.place, offset.value, make_pair_of_codes(offset)

    @cuda.jit(device=True, forceinline=True)
    def begin_block(table, weight, zero):
        """The mask of a pair of codes: a lop3 takes one constant, so one that the compiler knows is moved to a register for every pair."""
        return uint32(codes_mask) | zero

    @cuda.jit(device=True, forceinline=True)
    def begin(weight, row):
        return row

    @cuda.jit(device=True, forceinline=True)
    def load(weight, row, kept, group, words, at):
        place = uint32(row * uint32(groups_of_a_row) + group)
        words[at] = uint32(weight.scales[place])
        if has_zeros:
            words[at + 1] = uint32(weight.zeros[place])
        if has_minimums:
            words[at + 1] = uint32(weight.minimums[place])

    @cuda.jit(device=True, forceinline=True)
    def scale(mask, kept, words, at):
        factor = float_of(words[at])
        if has_minimums:
            return Scale(factor, float_of(words[at + 1]) - float32(value) * factor)
        if has_zeros:
            return Scale(factor, -(float32(value) + float32(words[at + 1])) * factor)
        return Scale(factor, float32(-value - MIDDLE) * factor)

    @cuda.jit(device=True, forceinline=True)
    def pair(mask, word, i):
        return pair_of_codes(word, i, mask)

    words = 2 if has_zeros or has_minimums else 1
    return Decoder(max(1, INPUTS // group_size), words, 0, offset.ones, begin_block, begin, load, scale, pair)
