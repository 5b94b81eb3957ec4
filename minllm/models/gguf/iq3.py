"""IQ3_XXS and IQ3_S: codes for 4 numbers, their signs, and scales; blocks of 256; 3.0625 and 3.4375 bits per number.

    IQ3_XXS   byte   0 1 | 2 ... 65 | 66 ... 97                                            d: float16
                     d   | codes    | uint32 per 32 numbers: 7 bits of signs per 8 numbers, and above them 4 of a scale
    IQ3_S     byte   0 1 | 2 ... 65 | 66 ... 73 | 74 ... 105      | 106 ... 109
                     d   | codes    | high      | 8 signs a byte  | scales

    scales: four bits per 32 numbers, low half first
    high:   bit k of byte t is the ninth bit of code 8 t + k
    IQ3_XXS   number i = d * (scale + 1/2) / 2 * sign_i * codebook[code][i mod 4]
    IQ3_S     number i = d * (2 scale + 1) * sign_i * codebook[code][i mod 4]

Source: ggml-common.h, block_iq3_xxs and block_iq3_s; ggml-quants.c, dequantize_row_iq3_xxs and dequantize_row_iq3_s.
"""

import numpy as np

from minllm.models.gguf.codebooks import codebook, even_signs, signs
from minllm.models.gguf.scaling import scaled, scales_of_groups

IQ3_XXS_BLOCK = np.dtype([("d", "<f2"), ("codes", "u1", 64), ("signs", "<u4", (8, 1))])
IQ3_S_BLOCK = np.dtype([("d", "<f2"), ("codes", "u1", 64), ("high", "u1", 8), ("signs", "u1", 32), ("scales", "u1", (4, 1))])
SEVENS = np.arange(0, 28, 7, dtype=np.uint32)  # shifts to the signs of four times eight numbers
HALVES = np.array([0, 4], np.uint8)


def dequantize_iq3_xxs(data: np.ndarray) -> np.ndarray:
    """Dequantise uint8 [98 * blocks] to float32 [256 * blocks]."""
    blocks = data.view(IQ3_XXS_BLOCK)
    factors = ((blocks["signs"][:, :, 0] >> 28).astype(np.float32) + np.float32(0.5)) * np.float32(0.5)
    numbers, signs_of_numbers = codebook("iq3_xxs")[blocks["codes"]], even_signs(blocks["signs"] >> SEVENS)
    return scaled(numbers.reshape(signs_of_numbers.shape) * signs_of_numbers, scales_of_groups(blocks["d"], factors))


def dequantize_iq3_s(data: np.ndarray) -> np.ndarray:
    """Dequantise uint8 [110 * blocks] to float32 [256 * blocks]."""
    blocks = data.view(IQ3_S_BLOCK)
    codes = blocks["codes"] | np.unpackbits(blocks["high"], axis=-1, bitorder="little").astype(np.uint16) << 8
    numbers, signs_of_numbers = codebook("iq3_s")[codes], signs(blocks["signs"])
    factors = 2 * (blocks["scales"] >> HALVES & 15).reshape(-1, 8) + 1
    return scaled(numbers.reshape(signs_of_numbers.shape) * signs_of_numbers, scales_of_groups(blocks["d"], factors))
