"""IQ2_XXS, IQ2_XS and IQ2_S: codes for 8 numbers, their signs, and scales; blocks of 256; 2.0625, 2.3125 and 2.5625 bits per number.

    IQ2_XXS   byte   0 1 | 2 ... 65                                                        d: float16
                     d   | per 32 numbers: 4 codes of a byte, and a uint32: 7 bits of signs per code, and above them 4 of a scale
    IQ2_XS    byte   0 1 | 2 ... 65                              | 66 ... 73
                     d   | uint16 per 8 numbers:                 | scales
                         | 9 bits of a code, 7 of signs          |
    IQ2_S     byte   0 1 | 2 ... 33 | 34 ... 65      | 66 ... 73 | 74 ... 81
                     d   | codes    | 8 signs a byte | high      | scales

    scales: four bits per 16 numbers, low half first
    high:   bits 2 k and 2 k + 1 of byte t are the upper two bits of code 4 t + k
    number i = d * (scale + 1/2) / 4 * sign_i * codebook[code][i mod 8]

Source: ggml-common.h, block_iq2_xxs, block_iq2_xs and block_iq2_s; ggml-quants.c, dequantize_row_iq2_xxs, ..._xs and ..._s.
"""

import numpy as np

from minllm.models.gguf.codebooks import codebook, even_signs, signs
from minllm.models.gguf.scaling import scaled, scales_of_groups

IQ2_XXS_BLOCK = np.dtype([("d", "<f2"), ("groups", [("codes", "u1", 4), ("signs", "<u4")], 8)])
IQ2_XS_BLOCK = np.dtype([("d", "<f2"), ("codes", "<u2", 32), ("scales", "u1", (8, 1))])
IQ2_S_BLOCK = np.dtype([("d", "<f2"), ("codes", "u1", 32), ("signs", "u1", 32), ("high", "u1", (8, 1)), ("scales", "u1", (8, 1))])
SEVENS = np.arange(0, 28, 7, dtype=np.uint32)  # shifts to the signs of four codes
PAIRS = np.arange(0, 8, 2, dtype=np.uint8)  # shifts to the four pairs of bits of a byte
HALVES = np.array([0, 4], np.uint8)


def dequantize_iq2_xxs(data: np.ndarray) -> np.ndarray:
    """Dequantise uint8 [66 * blocks] to float32 [256 * blocks]."""
    blocks = data.view(IQ2_XXS_BLOCK)
    codes, words = blocks["groups"]["codes"], blocks["groups"]["signs"]
    return _scaled(blocks, words >> 28, codebook("iq2_xxs")[codes], even_signs(words[..., None] >> SEVENS))


def dequantize_iq2_xs(data: np.ndarray) -> np.ndarray:
    """Dequantise uint8 [74 * blocks] to float32 [256 * blocks]."""
    blocks = data.view(IQ2_XS_BLOCK)
    return _scaled(blocks, blocks["scales"] >> HALVES & 15, codebook("iq2_xs")[blocks["codes"] & 511], even_signs(blocks["codes"] >> 9))


def dequantize_iq2_s(data: np.ndarray) -> np.ndarray:
    """Dequantise uint8 [82 * blocks] to float32 [256 * blocks]."""
    blocks = data.view(IQ2_S_BLOCK)
    codes = blocks["codes"] | (blocks["high"] >> PAIRS & 3).reshape(-1, 32).astype(np.uint16) << 8
    return _scaled(blocks, blocks["scales"] >> HALVES & 15, codebook("iq2_s")[codes], signs(blocks["signs"]))


def _scaled(blocks: np.ndarray, scales: np.ndarray, numbers: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """The numbers [blocks, ..., 8] of codes with their signs and scales, in one row."""
    factors = (scales.reshape(len(blocks), -1).astype(np.float32) + np.float32(0.5)) * np.float32(0.25)
    return scaled(numbers * signs, scales_of_groups(blocks["d"], factors))
