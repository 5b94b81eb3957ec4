"""IQ1_S and IQ1_M: codes for 8 numbers that are -1, 0 or 1, shifted by an eighth; blocks of 256; 1.5625 and 1.75 bits per number.

    IQ1_S   byte   0 1 | 2 ... 33 | 34 ... 49                                              d: float16
                   d   | codes    | uint16 per 32 numbers: bits 3 k and up are the upper three bits of code k, bits 12 to 14 the scale,
                       |          | bit 15 makes the shift negative
    IQ1_M   byte   0 ... 31 | 32 ... 47 | 48 ... 55
                   codes    | high      | scales

    high:   half a byte per code, low half first: its upper three bits, and a bit that makes its shift negative
    scales: four uint16, each with four scales of three bits, for 16 numbers each; their upper four bits are d, the lowest part first
    number i = d * (2 scale + 1) * (codebook[code][i mod 8] + shift),   shift = 1/8 or -1/8

Source: ggml-common.h, block_iq1_s and block_iq1_m; ggml-quants.c, dequantize_row_iq1_s and dequantize_row_iq1_m.
"""

import numpy as np

from minllm.models.gguf.codebooks import codebook
from minllm.models.gguf.scaling import scaled, scales_of_groups

IQ1_S_BLOCK = np.dtype([("d", "<f2"), ("codes", "u1", 32), ("high", "<u2", (8, 1))])
IQ1_M_BLOCK = np.dtype([("codes", "u1", 32), ("high", "u1", (16, 1)), ("scales", "<u2", (4, 1))])
THREES = np.arange(0, 12, 3, dtype=np.uint16)  # shifts to four fields of three bits
HALVES = np.array([0, 4], np.uint8)
QUARTERS = np.array([[12], [8], [4], [0]], np.uint16)  # shifts from the upper four bits of a word to their place in d
SHIFTS = np.array([0.125, -0.125], np.float32)


def dequantize_iq1_s(data: np.ndarray) -> np.ndarray:
    """Dequantise uint8 [50 * blocks] to float32 [256 * blocks]."""
    blocks = data.view(IQ1_S_BLOCK)
    high, words = (blocks["high"] >> THREES & 7).reshape(-1, 32), blocks["high"][:, :, 0]
    return _scaled(blocks, blocks["d"], words >> 12 & 7, high, SHIFTS[words >> 15].repeat(4, axis=1))


def dequantize_iq1_m(data: np.ndarray) -> np.ndarray:
    """Dequantise uint8 [56 * blocks] to float32 [256 * blocks]."""
    blocks = data.view(IQ1_M_BLOCK)
    high = (blocks["high"] >> HALVES & 15).reshape(-1, 32)
    d = np.bitwise_or.reduce((blocks["scales"] & 0xF000) >> QUARTERS, axis=1).view("<f2")[:, 0]
    return _scaled(blocks, d, (blocks["scales"] >> THREES & 7).reshape(-1, 16), high & 7, SHIFTS[high >> 3])


def _scaled(blocks: np.ndarray, d: np.ndarray, scales: np.ndarray, high: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """The numbers of codes with the scales [blocks, 8 or 16], their upper bits and shifts [blocks, 32], in one row."""
    numbers = codebook("iq1")[blocks["codes"] | high.astype(np.uint16) << 8] + shifts[:, :, None]
    return scaled(numbers, scales_of_groups(d, 2 * scales + 1))
