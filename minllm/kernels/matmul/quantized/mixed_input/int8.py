"""int8 in groups for mixed-input GEMM: bytes become 16-bit floats by bit operations, then are scaled.

    w[n, k] = code[n, k] * scale[n, k // group_size]          scale and product are rounded to x's dtype

prmt selects the bytes of inputs 2 t and 2 t + 1. A byte with its sign bit flipped is code + 128; 0x6400 above it makes it the float16
1024 + 128 + code, and an fma subtracts 1024 + 128. bfloat16 has seven bits for that: the lower seven of a byte become 128 + bits, and the
sign bit is the lowest bit of the exponent of -128 or -256, which an fma adds. All of these numbers are exact.
"""

import functools
from typing import NamedTuple

import numpy as np
from numba import cuda, uint32

from minllm import ptx
from minllm.kernels.matmul.quantized.mixed_input.decoder import (
    FMA,
    MINUS_ZEROS,
    Decoder,
    make_chunk_at,
    make_pair_of,
    no_table,
    nothing_ahead,
    unknown_zero,
)
from minllm.kernels.matmul.quantized.mixed_input.gemm import make_gated_gemm, make_gemm
from minllm.kernels.matmul.quantized.mixed_input.scales import ScaleArray
from minllm.kernels.matmul.quantized.mixed_input.tiling import STEP

CODE_BYTES = STEP  # bytes of codes per row and step
INPUTS = 16  # inputs per chunk of codes
chunk_at = make_chunk_at(CODE_BYTES)
# Pairs of 16-bit floats.
BF16_ONES, BF16_128, BF16_MINUS_128 = 0x3F803F80, 0x43004300, 0xC300C300
F16_ONES, F16_MINUS_1152 = 0x3C003C00, 0xE480E480


class Lane(NamedTuple):
    """Which of two words has a lane's bytes, 2 t and 2 t + 1 of eight, and the prmt selector that moves each to a half of a word.

    Masks of a byte's sign bit and of its other bits, in both halves.
    """

    word: int
    bytes: int
    sign: int
    magnitude: int


@cuda.jit(device=True, forceinline=True)
def make_lane(weight, table, low, high):
    """Return the Lane."""
    thread, zero = uint32(cuda.threadIdx.x), unknown_zero()
    selector = uint32(0x1100) + uint32(0x2222) * (thread & uint32(1))
    return Lane(thread >> uint32(1) & uint32(1), selector, uint32(0x00800080 + zero), uint32(0x007F007F + zero))


@cuda.jit(device=True, forceinline=True)
def bfloat16_pair(codes, lane):
    """Return bytes 0 and 2 of a word as two bfloat16, exactly."""
    minus = codes & lane.sign | uint32(BF16_MINUS_128)  # -256 for a negative byte
    return ptx.fma_bf16x2(codes & lane.magnitude | uint32(BF16_128), uint32(BF16_ONES), minus)


@cuda.jit(device=True, forceinline=True)
def float16_pair(codes, lane):
    """Return bytes 0 and 2 of a word as two float16, exactly."""
    return ptx.fma_f16x2(codes & uint32(0x00FF00FF) ^ uint32(0x64806480), uint32(F16_ONES), uint32(F16_MINUS_1152))


@functools.cache
def make_int8_decoder(dtype: str, group_size: int, scales: np.dtype) -> Decoder:
    """Return the Decoder of int8 weights in groups of 32 or multiples of 64; dtype of x: bfloat16 or float16; scales: their dtype."""
    arrays = (ScaleArray(scales, group_size),)
    parts = arrays[0].groups
    chunks_of_part, scale_of = STEP // parts // INPUTS, make_pair_of(scales, dtype)
    fma, pair = FMA[dtype], bfloat16_pair if dtype == "bfloat16" else float16_pair

    def make_pairs(read):
        @cuda.jit(device=True, forceinline=True)
        def pairs_of_step(lane, ahead, stage, elements, pairs):
            """pairs[2 * part : 2 * part + 2] = the scales of rows low and high."""
            for part in range(parts):
                for high in range(2):
                    pairs[2 * part + high] = scale_of(read(stage, elements, 0, part, high))

        return pairs_of_step

    @cuda.jit(device=True, forceinline=True)
    def decode(memory, line, apart, lane, pairs, numbers):
        """numbers[0 : 16] = a decoded step of both rows.

        A lane loads only words that it needs. If it loaded 16 bytes at a time, the loads of a warp would take twice as many cycles of
        shared memory, which is as busy as the tensor cores.
        """
        first = ptx.shared_address(memory, uint32(line + lane.word))
        for chunk in range(CODE_BYTES // 16):
            address, at = uint32(first + chunk_at(chunk) * uint32(4)), chunk // chunks_of_part * 2
            for i in range(4):  # inputs 0 to 7 of rows low and high, then inputs 8 to 15
                word = ptx.load_shared_32(uint32(address + i % 2 * 4 * apart + i // 2 * 8))
                codes = ptx.prmt(word, uint32(0), lane.bytes)
                numbers[4 * chunk + i] = fma(pair(codes, lane), pairs[at + i % 2], uint32(MINUS_ZEROS))

    return Decoder(arrays, CODE_BYTES, 2 * parts, 0, no_table, make_lane, nothing_ahead, make_pairs, decode)


def decoder_of(x, weight) -> tuple[Decoder, None]:
    """Return the Decoder of an Int8GroupWeight; its lanes load no arrays."""
    return make_int8_decoder(x.dtype.name, x.shape[1] // weight.scales.shape[0], weight.scales.dtype), None


int8_group_gemm, gated_int8_group_gemm = make_gemm(decoder_of), make_gated_gemm(decoder_of)
