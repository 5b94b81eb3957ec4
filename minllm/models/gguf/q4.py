"""Q4_0 and Q4_1: blocks of 32 4-bit numbers with a scale (4.5 bits per number), or a scale and a minimum (5).

    Q4_0   byte  0 1 |     2 ... 17           Q4_1   byte  0 1 | 2 3 |     4 ... 19
                 d   | nibbles                             d   | m   | nibbles           d, m: float16

    nibbles: byte j holds number j in its low half and number j + 16 in its high half
    Q4_0   number i = d * (q_i - 8)           Q4_1   number i = d * q_i + m              q_i: 0 ... 15

Source: ggml-common.h, block_q4_0 and block_q4_1; ggml-quants.c, dequantize_row_q4_0 and dequantize_row_q4_1.
"""

import numpy as np

from minllm.models.gguf.scaling import scaled

Q4_0_BLOCK = np.dtype([("d", "<f2"), ("nibbles", "u1", 16)])
Q4_1_BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("nibbles", "u1", 16)])


def dequantize_q4_0(data: np.ndarray) -> np.ndarray:
    """Dequantise uint8 [18 * blocks] to float32 [32 * blocks]."""
    blocks = data.view(Q4_0_BLOCK)
    return scaled(_codes(blocks["nibbles"]) - 8, blocks["d"])


def dequantize_q4_1(data: np.ndarray) -> np.ndarray:
    """Dequantise uint8 [20 * blocks] to float32 [32 * blocks]."""
    blocks = data.view(Q4_1_BLOCK)
    return scaled(_codes(blocks["nibbles"]), blocks["d"], blocks["m"])


def _codes(nibbles: np.ndarray) -> np.ndarray:
    """Unpack nibbles, uint8 [blocks, 16], to codes 0 to 15, float32 [blocks, 32]."""
    codes = np.empty((len(nibbles), 32), np.float32)
    codes[:, :16] = nibbles & 15
    codes[:, 16:] = nibbles >> 4
    return codes
