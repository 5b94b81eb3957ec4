"""Q6_K: blocks of 256 numbers, 6 bits each, with a scale per 16; 6.5625 bits per number.

    byte   0 ... 127 | 128 ... 191 | 192 ... 207 | 208 209
           low       | high        | scales      | d            low, high: uint8, scales: int8, d: float16

The block has two halves of 128 numbers, each with 64 bytes of `low` and 32 of `high`. Number 32 k + j of a half (k = 0 ... 3, j = 0 ... 31)
has its lower four bits in byte 32 (k mod 2) + j of `low`, in the low nibble for k < 2 and in the high one for k >= 2, and its upper two
bits in byte j of `high`, at bit 2 k:

    number i = d * scales[i // 16] * (q_i - 32),   q_i: 0 ... 63

Source: ggml-common.h, block_q6_K; ggml-quants.c, dequantize_row_q6_K.
"""

import numpy as np

from minllm.models.gguf.scaling import scaled, scales_of_groups

BLOCK = np.dtype([("low", "u1", (2, 2, 32)), ("high", "u1", (2, 32)), ("scales", "i1", 16), ("d", "<f2")])


def dequantize_q6_k(data: np.ndarray) -> np.ndarray:
    """Dequantise uint8 [210 * blocks] to float32 [256 * blocks]."""
    blocks = data.view(BLOCK)
    codes = np.empty((len(blocks), 2, 4, 32), np.uint8)  # [blocks, half, k, j]
    codes[:, :, :2] = blocks["low"] & 15
    codes[:, :, 2:] = blocks["low"] >> 4
    for k in range(4):
        codes[:, :, k] |= (blocks["high"] >> 2 * k & 3) << 4
    return scaled(codes.astype(np.float32) - 32, scales_of_groups(blocks["d"], blocks["scales"]))
