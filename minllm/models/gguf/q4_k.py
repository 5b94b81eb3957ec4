"""Q4_K and Q5_K: blocks of 256 numbers with a scale and a minimum per 32; 4.5 and 5.5 bits per number.

    Q4_K   byte   0 1 | 2 3  | 4 ... 15 | 16 ... 143
                  d   | dmin | scales   | nibbles                      d, dmin: float16
    Q5_K   byte   0 1 | 2 3  | 4 ... 15 | 16 ... 47 | 48 ... 175
                  d   | dmin | scales   | high      | nibbles

    nibbles: 32 bytes per 64 numbers; the low halves are the first 32 of them, the high halves the other 32
    high:    bit s of byte j is the fifth bit of number 32 s + j
    scales:  12 bytes of 6-bit scales and minima, s = 0 ... 7. For s < 4 scale s is the lower six bits of byte s, minimum s those of byte
             4 + s. For s >= 4 byte 4 + s holds the lower four bits of scale s (low half) and minimum s (high half), and the upper two bits
             of bytes s - 4 (scale) and s (minimum) are their upper two bits
    number i = d * scale_s * q_i - dmin * minimum_s,   s = i // 32

Source: ggml-common.h, block_q4_K and block_q5_K; ggml-quants.c, get_scale_min_k4, dequantize_row_q4_K and dequantize_row_q5_K.
"""

import numpy as np

from minllm.models.gguf.scaling import scaled, scales_of_groups

Q4_K_BLOCK = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", (3, 4)), ("nibbles", "u1", (4, 1, 32))])
Q5_K_BLOCK = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", (3, 4)), ("high", "u1", (1, 32)), ("nibbles", "u1", (4, 1, 32))])
HALVES = np.array([[0], [4]], np.uint8)  # shifts to the low and high halves of a byte
BITS = np.arange(8, dtype=np.uint8)[:, None]


def dequantize_q4_k(data: np.ndarray) -> np.ndarray:
    """Dequantise uint8 [144 * blocks] to float32 [256 * blocks]."""
    blocks = data.view(Q4_K_BLOCK)
    return _scaled(blocks, _low_codes(blocks))


def dequantize_q5_k(data: np.ndarray) -> np.ndarray:
    """Dequantise uint8 [176 * blocks] to float32 [256 * blocks]."""
    blocks = data.view(Q5_K_BLOCK)
    return _scaled(blocks, _low_codes(blocks) | (blocks["high"] >> BITS & 1) << 4)


def _low_codes(blocks: np.ndarray) -> np.ndarray:
    """The lower four bits of each code, uint8 [blocks, 8, 32]."""
    return (blocks["nibbles"] >> HALVES & 15).reshape(-1, 8, 32)


def _scaled(blocks: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """The numbers of codes [blocks, 8, 32], float32 [256 * blocks]."""
    scales, minima, both = blocks["scales"].swapaxes(0, 1)  # [blocks, 4] each
    scales = np.concatenate([scales & 63, both & 15 | scales >> 6 << 4], axis=1)
    minima = np.concatenate([minima & 63, both >> 4 | minima >> 6 << 4], axis=1)
    return scaled(codes, scales_of_groups(blocks["d"], scales), -scales_of_groups(blocks["dmin"], minima))
