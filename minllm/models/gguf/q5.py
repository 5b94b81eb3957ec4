"""Q5_0 and Q5_1: blocks of 32 5-bit numbers with a scale (5.5 bits per number), or a scale and a minimum (6).

    Q5_0   byte  0 1 | 2 ... 5 | 6 ... 21      Q5_1   byte  0 1 | 2 3 | 4 ... 7 | 8 ... 23
                 d   | high    | nibbles                    d   | m   | high    | nibbles      d, m: float16, high: uint32

    nibbles: the lower four bits; byte j holds those of number j in its low half and of number j + 16 in its high half
    high:    bit i is the fifth bit of number i
    Q5_0   number i = d * (q_i - 16)           Q5_1   number i = d * q_i + m              q_i: 0 ... 31

Source: ggml-common.h, block_q5_0 and block_q5_1; ggml-quants.c, dequantize_row_q5_0 and dequantize_row_q5_1.
"""

import numpy as np

from minllm.models.gguf.scaling import scaled

Q5_0_BLOCK = np.dtype([("d", "<f2"), ("high", "u1", 4), ("nibbles", "u1", 16)])
Q5_1_BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("high", "u1", 4), ("nibbles", "u1", 16)])


def dequantize_q5_0(data: np.ndarray) -> np.ndarray:
    """Dequantise uint8 [22 * blocks] to float32 [32 * blocks]."""
    blocks = data.view(Q5_0_BLOCK)
    return scaled(_codes(blocks) - 16, blocks["d"])


def dequantize_q5_1(data: np.ndarray) -> np.ndarray:
    """Dequantise uint8 [24 * blocks] to float32 [32 * blocks]."""
    blocks = data.view(Q5_1_BLOCK)
    return scaled(_codes(blocks), blocks["d"], blocks["m"])


def _codes(blocks: np.ndarray) -> np.ndarray:
    """The codes 0 to 31, float32 [blocks, 32]."""
    codes = np.unpackbits(blocks["high"], axis=1, bitorder="little") << 4
    codes[:, :16] |= blocks["nibbles"] & 15
    codes[:, 16:] |= blocks["nibbles"] >> 4
    return codes.astype(np.float32)
