"""TQ1_0 and TQ2_0: numbers that are -1, 0 or 1 times the scale of their block of 256; 1.6875 and 2.0625 bits per number.

    TQ1_0   byte   0 ... 31 | 32 ... 47 | 48 ... 51 | 52 53
                   wide     | narrow    | rest      | d                                    d: float16
    TQ2_0   byte   0 ... 63 | 64 65
                   codes    | d

    TQ1_0   a byte b holds five digits in base 3, as the fraction b / 256 = 0.q0 q1 q2 q3 q4 (rounded up); those of `rest` hold four.
            Digit k of byte j is number 32 k + j for `wide`, 160 + 16 k + j for `narrow`, 240 + 4 k + j for `rest`
    TQ2_0   bits 2 k and 2 k + 1 of byte j of half h (32 bytes) are q_i of number i = 128 h + 32 k + j
    number i = d * (q_i - 1)

Source: ggml-common.h, block_tq1_0 and block_tq2_0; ggml-quants.c, dequantize_row_tq1_0 and dequantize_row_tq2_0.
"""

import numpy as np

from minllm.models.gguf.scaling import scaled

TQ1_0_BLOCK = np.dtype([("wide", "u1", (1, 32)), ("narrow", "u1", (1, 16)), ("rest", "u1", (1, 4)), ("d", "<f2")])
TQ2_0_BLOCK = np.dtype([("codes", "u1", (2, 1, 32)), ("d", "<f2")])
POWERS = np.array([[1], [3], [9], [27], [81]], np.uint8)
PAIRS = np.array([[0], [2], [4], [6]], np.uint8)  # shifts to the four pairs of bits of a byte


def dequantize_tq1_0(data: np.ndarray) -> np.ndarray:
    """Dequantise uint8 [54 * blocks] to float32 [256 * blocks]."""
    blocks = data.view(TQ1_0_BLOCK)
    fractions = [blocks["wide"] * POWERS, blocks["narrow"] * POWERS, blocks["rest"] * POWERS[:4]]  # uint8: whole digits overflow
    digits = np.concatenate([one.reshape(len(blocks), -1) for one in fractions], axis=1).astype(np.uint16) * 3 >> 8
    return scaled(digits.astype(np.float32) - 1, blocks["d"])


def dequantize_tq2_0(data: np.ndarray) -> np.ndarray:
    """Dequantise uint8 [66 * blocks] to float32 [256 * blocks]."""
    blocks = data.view(TQ2_0_BLOCK)
    return scaled((blocks["codes"] >> PAIRS & 3).astype(np.float32) - 1, blocks["d"])
