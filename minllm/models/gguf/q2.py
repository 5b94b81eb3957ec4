"""Q1_0 and Q2_0: one or two bits per number and a scale, in blocks of 128 (1.125 bits per number) or 64 (2.25).

    Q1_0   byte  0 1 | 2 ... 17               Q2_0   byte  0 1 | 2 ... 17
                 d   | bits                                d   | codes                       d: float16

    bits:  bit i mod 8 of byte i // 8 is q_i       codes: bits 2 (i mod 4) and up of byte i // 4 are q_i
    Q1_0   number i = d * (2 q_i - 1)         Q2_0   number i = d * (q_i - 1)

Files of a fork of llama.cpp, from before Q2_0 had a number of its own, give the same number to blocks of 128; they are refused.

Source: ggml-common.h, block_q1_0 and block_q2_0; ggml-quants.c, dequantize_row_q1_0 and dequantize_row_q2_0.
"""

import numpy as np

from minllm.models.gguf.scaling import scaled

Q1_0_BLOCK = np.dtype([("d", "<f2"), ("bits", "u1", 16)])
Q2_0_BLOCK = np.dtype([("d", "<f2"), ("codes", "u1", (16, 1))])
SHIFTS = np.arange(0, 8, 2, dtype=np.uint8)


def dequantize_q1_0(data: np.ndarray) -> np.ndarray:
    """Dequantise uint8 [18 * blocks] to float32 [128 * blocks]."""
    blocks = data.view(Q1_0_BLOCK)
    return scaled(np.unpackbits(blocks["bits"], axis=1, bitorder="little").astype(np.float32) * 2 - 1, blocks["d"])


def dequantize_q2_0(data: np.ndarray) -> np.ndarray:
    """Dequantise uint8 [18 * blocks] to float32 [64 * blocks]."""
    blocks = data.view(Q2_0_BLOCK)
    return scaled((blocks["codes"] >> SHIFTS & 3).astype(np.float32) - 1, blocks["d"])
