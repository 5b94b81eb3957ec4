"""Q2_K and Q3_K: blocks of 256 numbers with a scale (and a minimum) per 16; 2.625 and 3.4375 bits per number.

    Q2_K   byte   0 ... 15 | 16 ... 79 | 80 81 | 82 83
                  scales   | codes     | d     | dmin                  d, dmin: float16
    Q3_K   byte   0 ... 31 | 32 ... 95 | 96 ... 107 | 108 109
                  high     | codes     | scales     | d

    codes:   32 bytes per 128 numbers; bits 2 k and 2 k + 1 of byte j of half h are the lower two bits of number 128 h + 32 k + j
    high:    bit s of byte j is the third bit of number 32 s + j
    scales:  Q2_K: scale s is the low half of byte s, minimum s its high half, s = 0 ... 15
             Q3_K: the lower four bits of scale s are in byte s mod 8, in its low half for s < 8, else in its high half; the upper two are
             in byte 8 + s mod 4, at bit 2 (s // 4)
    Q2_K   number i = d * scale_s * q_i - dmin * minimum_s          Q3_K   number i = d * (scale_s - 32) * (q_i - 4),   s = i // 16

Source: ggml-common.h, block_q2_K and block_q3_K; ggml-quants.c, dequantize_row_q2_K and dequantize_row_q3_K.
"""

import numpy as np

from minllm.models.gguf.scaling import scaled, scales_of_groups

CODES = ("codes", "u1", (2, 1, 32))
Q2_K_BLOCK = np.dtype([("scales", "u1", 16), CODES, ("d", "<f2"), ("dmin", "<f2")])
Q3_K_BLOCK = np.dtype([("high", "u1", (1, 32)), CODES, ("low_scales", "u1", (1, 8)), ("high_scales", "u1", (1, 4)), ("d", "<f2")])
HALVES = np.array([[0], [4]], np.uint8)  # shifts to the low and high halves of a byte
PAIRS = np.array([[0], [2], [4], [6]], np.uint8)  # shifts to the four pairs of bits of a byte
BITS = np.arange(8, dtype=np.uint8)[:, None]


def dequantize_q2_k(data: np.ndarray) -> np.ndarray:
    """Dequantise uint8 [84 * blocks] to float32 [256 * blocks]."""
    blocks = data.view(Q2_K_BLOCK)
    scales, minimums = scales_of_groups(blocks["d"], blocks["scales"] & 15), scales_of_groups(blocks["dmin"], blocks["scales"] >> 4)
    return scaled(blocks["codes"] >> PAIRS & 3, scales, -minimums)


def dequantize_q3_k(data: np.ndarray) -> np.ndarray:
    """Dequantise uint8 [110 * blocks] to float32 [256 * blocks]."""
    blocks = data.view(Q3_K_BLOCK)
    codes = (blocks["codes"] >> PAIRS & 3).reshape(-1, 8, 32) | (blocks["high"] >> BITS & 1) << 2
    scales = (blocks["low_scales"] >> HALVES & 15).reshape(-1, 16) | (blocks["high_scales"] >> PAIRS & 3).reshape(-1, 16) << 4
    return scaled(codes.astype(np.float32) - 4, scales_of_groups(blocks["d"], scales.astype(np.float32) - 32))
