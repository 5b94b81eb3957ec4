"""IQ4_NL and IQ4_XS: codes of four bits for 16 numbers that are closer together near zero; 4.5 and 4.25 bits per number.

    IQ4_NL   blocks of 32    byte   0 1 | 2 ... 17
                                    d   | nibbles                                          d: float16
    IQ4_XS   blocks of 256   byte   0 1 | 2 3  | 4 ... 7 | 8 ... 135
                                    d   | high | low     | nibbles                         high: uint16

    nibbles: 16 bytes per 32 numbers; byte j holds number j in its low half and number j + 16 in its high half
    low:     byte t holds the lower four bits of scale 2 t in its low half, of scale 2 t + 1 in its high half
    high:    bits 2 s and 2 s + 1 are the upper two bits of scale s
    IQ4_NL   number i = d * NUMBERS[q_i]      IQ4_XS   number i = d * (scale_s - 32) * NUMBERS[q_i],   s = i // 32

Source: ggml-common.h, block_iq4_nl, block_iq4_xs and kvalues_iq4nl; ggml-quants.c, dequantize_row_iq4_nl and dequantize_row_iq4_xs.
"""

import numpy as np

from minllm.models.gguf.scaling import scaled, scales_of_groups

NUMBERS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
IQ4_NL_BLOCK = np.dtype([("d", "<f2"), ("nibbles", "u1", (1, 1, 16))])
IQ4_XS_BLOCK = np.dtype([("d", "<f2"), ("high", "<u2"), ("low", "u1", (4, 1)), ("nibbles", "u1", (8, 1, 16))])
HALVES = np.array([0, 4], np.uint8)  # shifts to the low and high halves of a byte
PAIRS = np.arange(0, 16, 2, dtype=np.uint16)  # shifts to the eight pairs of bits of `high`


def dequantize_iq4_nl(data: np.ndarray) -> np.ndarray:
    """Dequantise uint8 [18 * blocks] to float32 [32 * blocks]."""
    blocks = data.view(IQ4_NL_BLOCK)
    return scaled(NUMBERS[blocks["nibbles"] >> HALVES[:, None] & 15], blocks["d"])


def dequantize_iq4_xs(data: np.ndarray) -> np.ndarray:
    """Dequantise uint8 [136 * blocks] to float32 [256 * blocks]."""
    blocks = data.view(IQ4_XS_BLOCK)
    scales = (blocks["low"] >> HALVES & 15).reshape(-1, 8) | (blocks["high"][:, None] >> PAIRS & 3) << 4
    numbers = NUMBERS[blocks["nibbles"] >> HALVES[:, None] & 15]
    return scaled(numbers, scales_of_groups(blocks["d"], scales.astype(np.float32) - 32))
