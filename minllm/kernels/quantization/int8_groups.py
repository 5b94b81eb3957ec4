"""int8 in groups of inputs that share a scale (W8A16): its equation and its decoders.

    scale = max |w| / 127        code = round(w / scale)        w' = code * scale

max is that of a group of neighbouring inputs of one output. This format is only read from checkpoints (GGUF's Q8_0 has groups of 32).
Weights that are quantised while loading use int8.py, which takes fewer bytes and multiplies integers.

On tensor cores prmt selects the bytes of inputs 2 t and 2 t + 1. A byte with its sign bit flipped is code + 128; 0x6400 above it makes it
the float16 1024 + 128 + code, and an fma subtracts 1024 + 128. bfloat16 has seven bits for that: the lower seven of a byte become 128 +
bits, and the sign bit is the lowest bit of the exponent of -128 or -256, which an fma adds. All of these numbers are exact.

Source: ggml-common.h, block_q8_0.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, uint32

from minllm import ptx
from minllm.kernels.quantization.decoder import (
    FMA,
    MINUS_ZEROS,
    NO_TABLE,
    STEP,
    Format,
    GroupDecoder,
    ScaleArray,
    TileDecoder,
    fill_nothing,
    make_pair_of,
    nothing_ahead,
    unknown_zero,
)
from minllm.kernels.quantization.int8 import unpack_int8
from minllm.runtime.device import AMPERE

# Pairs of 16-bit floats.
BF16_ONES, BF16_128, BF16_MINUS_128 = 0x3F803F80, 0x43004300, 0xC300C300
F16_ONES, F16_MINUS_1152 = 0x3C003C00, 0xE480E480


class Int8GroupWeight(NamedTuple):
    """An int8 matrix [outputs, inputs] with a scale per group."""

    codes: Any  # int8 [outputs, inputs]
    scales: Any  # float [groups, outputs]; why in this order: int4.py


def dequantize_int8_groups_reference(weight: Int8GroupWeight) -> np.ndarray:
    """code * scale, float32 [outputs, inputs]."""
    groups = weight.codes.astype(np.float32).reshape(*weight.scales.T.shape, -1)
    return (groups * weight.scales.T.astype(np.float32)[..., None]).reshape(weight.codes.shape)


@functools.cache
def make_group_decoder(group_size: int, scales: np.dtype) -> GroupDecoder:
    """For CUDA cores."""

    @cuda.jit(device=True)
    def scale_of(weight, n, k):
        return float32(weight.scales[k // group_size, n])

    return GroupDecoder(0, fill_nothing, scale_of)


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
def make_tile_decoder(dtype: str, group_size: int, scales: np.dtype) -> TileDecoder:
    """For tiles; groups of 32 or multiples of 64. The scale and the product are rounded to x's dtype."""
    arrays = (ScaleArray(scales, group_size),)
    parts, scale_of = arrays[0].groups, make_pair_of(scales, dtype)
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
    def number(word, lane, pairs, at):
        codes = ptx.prmt(word, uint32(0), lane.bytes)
        return fma(pair(codes, lane), pairs[at], uint32(MINUS_ZEROS))

    return TileDecoder(arrays, STEP, 1, NO_TABLE, make_lane, nothing_ahead, make_pairs, number)


INT8_GROUPS = Format(
    "int8_groups", Int8GroupWeight, None, dequantize_int8_groups_reference, 1, AMPERE, unpack_int8,
    kind=lambda weight, k: (k // weight.scales.shape[0], weight.scales.dtype), groups=make_group_decoder, tiles=make_tile_decoder,
)  # fmt: skip
