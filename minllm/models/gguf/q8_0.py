"""Q8_0: blocks of 32 numbers as signed bytes with one scale; 8.5 bits per number.

    byte     0 1 | 2 3 4 ... 33
             d   | q0 q1 ... q31        d: float16, q: int8
    number i = d * q_i

Source: ggml-common.h, block_q8_0; ggml-quants.c, dequantize_row_q8_0.
"""

import numpy as np

from minllm.models.gguf.scaling import scaled

BLOCK = np.dtype([("d", "<f2"), ("q", "i1", 32)])


def dequantize_q8_0(data: np.ndarray) -> np.ndarray:
    """Dequantise uint8 [34 * blocks] to float32 [32 * blocks]."""
    blocks = data.view(BLOCK)
    return scaled(blocks["q"], blocks["d"])
