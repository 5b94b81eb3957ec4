"""MXFP4 and NVFP4: floating-point numbers of four bits (e2m1) with a scale per 32 or per 16; 4.25 and 4.5 bits per number.

    MXFP4   blocks of 32   byte   0   | 1 ... 16
                                  exp | nibbles                                            exp: uint8, an exponent
    NVFP4   blocks of 64   byte   0 ... 3 | 4 ... 35
                                  scales  | nibbles                                        scales: e4m3 without its sign

    nibbles, 16 or 8 bytes per scale: byte j holds number j in its low half and number j + 16, or j + 8, in its high half
    MXFP4   number i = 2**(exp - 127) * E2M1[q_i]        NVFP4   number i = scale * E2M1[q_i]

A scale of NaN, 255 or 127, is a number in ggml: 2**128, and 0.

Source: OCP 2023, "Microscaling Formats (MX) Specification", section 5.3; ggml-common.h, block_mxfp4 and block_nvfp4; ggml-quants.c,
dequantize_row_mxfp4 and dequantize_row_nvfp4.
"""

import numpy as np

from minllm.models.gguf.scaling import scaled

E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)  # ggml's -0 is 0
MXFP4_BLOCK = np.dtype([("exponent", "u1"), ("nibbles", "u1", (1, 16))])
NVFP4_BLOCK = np.dtype([("scales", "u1", 4), ("nibbles", "u1", (4, 1, 8))])
HALVES = np.array([[0], [4]], np.uint8)  # shifts to the low and high halves of a byte


def dequantize_mxfp4(data: np.ndarray) -> np.ndarray:
    """Dequantise uint8 [17 * blocks] to float32 [32 * blocks]."""
    blocks = data.view(MXFP4_BLOCK)
    numbers = E2M1_DOUBLED[blocks["nibbles"] >> HALVES & 15]  # [blocks, half, number]
    with np.errstate(over="ignore"):  # the caller checks for non-finite numbers
        return np.ldexp(numbers, blocks["exponent"].astype(np.int32)[:, None, None] - 128).reshape(-1)


def dequantize_nvfp4(data: np.ndarray) -> np.ndarray:
    """Dequantise uint8 [36 * blocks] to float32 [64 * blocks]."""
    blocks = data.view(NVFP4_BLOCK)
    numbers = E2M1_DOUBLED[blocks["nibbles"] >> HALVES & 15]  # [blocks, scale, half, number]
    return scaled(numbers, _halved_scales()[blocks["scales"]])


def _halved_scales() -> np.ndarray:
    """Half of the e4m3 number of each byte, float32 [256]."""
    exponents, fractions = np.divmod(np.arange(256) & 127, 8)
    halved = np.ldexp(np.where(exponents, 8 + fractions, fractions).astype(np.float32), np.maximum(exponents, 1) - 11)
    halved[127] = 0
    return halved
