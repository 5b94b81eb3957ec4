"""int8 with a scale per row, of weights and of activations (W8A8): its equations and its decoders.

    scale[n] = max over k of |matrix[n, k]| / 127        code[n, k] = round(matrix[n, k] / scale[n])
    out[m, n] = (sum over k of x_code[m, k] * code[n, k]) * x_scale[m] * scale[n] + bias[n]

Rows of x are quantised by the same equations, so the sum is over integers, and both scales are applied after it. A row of x has one
scale, so a channel that is 100 times larger than the others leaves them a 100th of the codes: int8 activations lose accuracy to outliers.

Source: Dettmers et al. 2022, "LLM.int8()", section 2.1 (vector-wise quantisation); Xiao et al. 2023, "SmoothQuant", section 3.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint8, uint32

from minllm.kernels.quantization.decoder import Format, RowCodes
from minllm.kernels.quantization.lanes import ROUNDING
from minllm.ptx import float_as_uint, mma_m16n8k32_s8
from minllm.runtime.device import AMPERE

LEVELS = 127  # codes are symmetric: -128 is not used


class Int8Weight(NamedTuple):
    """An int8 matrix [outputs, inputs], or rows of activations [tokens, inputs]."""

    codes: Any  # int8 [outputs, inputs]
    scales: Any  # float32 [outputs]


def quantize_int8(rows: np.ndarray) -> Int8Weight:
    """Quantise rows [rows, inputs] to the nearest codes, with a scale per row. A row of zeros has scale 0."""
    rows = rows.astype(np.float32)
    scales = np.abs(rows).max(axis=1, initial=0) * np.float32(1 / LEVELS)
    inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales > 0)
    with np.errstate(invalid="ignore"):  # check_scales refuses NaN and infinity
        return Int8Weight(np.clip(np.rint(rows * inverse[:, None]), -LEVELS, LEVELS).astype(np.int8), scales)


def dequantize_int8_reference(weight: Int8Weight) -> np.ndarray:
    """code * scale, float32 [outputs, inputs]."""
    return weight.codes.astype(np.float32) * weight.scales[:, None]


def multiply_int8(x: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """x @ codes.T of codes, float32; the sums are exact: float64 holds integers up to 2**53."""
    return (x.astype(np.float64) @ codes.astype(np.float64).T).astype(np.float32)


@cuda.jit(device=True)
def int8_bits(value):
    """Return the int8 code, as the bits of a uint8, of a number between -127 and 127."""
    return uint8(float_as_uint(value + float32(ROUNDING)) & uint32(255))


@cuda.jit(device=True)
def int8_number(value):
    """Return the int8 code, as a float32, of a number between -127 and 127."""
    return (value + float32(ROUNDING)) - float32(ROUNDING)


@cuda.jit(device=True)
def int8_word(values, at):
    """Return the int8 codes of values[at : at + 4], packed in a 32-bit word."""
    word = uint32(0)
    for k in range(4):
        word |= (float_as_uint(values[at + k] + float32(ROUNDING)) & uint32(255)) << uint32(8 * k)
    return word


@cuda.jit(device=True)
def unpack_int8(word, given, values, at):
    """values[at : at + 4] = the signed bytes of a word as float32."""
    for i in range(4):
        values[at + i] = float32(int32(word << uint32(24 - 8 * i)) >> 24)


CODES = RowCodes(np.int8, LEVELS, int8_bits, int8_number, int8_word, multiply_int8, mma_m16n8k32_s8, int32, "int8")
INT8 = Format("int8", Int8Weight, quantize_int8, dequantize_int8_reference, 1, AMPERE, unpack_int8, codes=CODES)
