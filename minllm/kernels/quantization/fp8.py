"""fp8 (e4m3) with a scale per row, of weights and of activations (W8A8): its equations and its decoders.

    scale[n] = max over k of |matrix[n, k]| / 448        code[n, k] = e4m3(matrix[n, k] / scale[n])
    out[m, n] = (sum over k of x_code[m, k] * code[n, k]) * x_scale[m] * scale[n] + bias[n]

e4m3 has 4 bits of exponent and 3 of fraction, and 448 is its largest number. Its steps grow with the number, so in a row with outliers
small numbers keep their three bits, while int8 leaves them none.

Source: Micikevicius et al. 2022, "FP8 Formats for Deep Learning", section 3; vLLM, "FP8 W8A8" (dynamic scales per token and channel); PTX
ISA, "cvt" (e4m3x2).
"""

import functools
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numba import cuda, float32, uint8, uint32

from minllm.kernels.quantization.decoder import PACK, Format, RowCodes
from minllm.ptx import mma_m16n8k32_e4m3, pack_e4m3x2, unpack_e4m3x2
from minllm.runtime.device import ADA

E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
LARGEST = 448


class Fp8Weight(NamedTuple):
    """An fp8 matrix [outputs, inputs], or rows of activations [tokens, inputs]."""

    codes: Any  # uint8 [outputs, inputs], the bits of e4m3
    scales: Any  # float32 [outputs]


def to_codes(numbers: np.ndarray) -> np.ndarray:
    """The bits of the nearest e4m3, uint8; numbers beyond +-448 become +-448."""
    with np.errstate(invalid="ignore"):  # check_scales refuses NaN and infinity
        return np.clip(numbers, -LARGEST, LARGEST).astype(E4M3).view(np.uint8)


def quantize_fp8(rows: np.ndarray) -> Fp8Weight:
    """Quantise rows [rows, inputs] to the nearest codes, with a scale per row. A row of zeros has scale 0."""
    rows = rows.astype(np.float32)
    scales = np.abs(rows).max(axis=1, initial=0) * np.float32(1 / LARGEST)
    inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales > 0)
    with np.errstate(invalid="ignore"):
        return Fp8Weight(to_codes(rows * inverse[:, None]), scales)


def dequantize_fp8_reference(weight: Fp8Weight) -> np.ndarray:
    """code * scale, float32 [outputs, inputs]."""
    return weight.codes.view(E4M3).astype(np.float32) * weight.scales[:, None]


def multiply_fp8(x: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """x @ codes.T of codes, float32."""
    return x.view(E4M3).astype(np.float32) @ codes.view(E4M3).astype(np.float32).T


@cuda.jit(device=True)
def fp8_bits(value):
    """Return the e4m3 code, as the bits of a uint8, of a number between -448 and 448."""
    return uint8(pack_e4m3x2(value, value) & uint32(255))


@cuda.jit(device=True)
def fp8_number(value):
    """Return the e4m3 code, as a float32, of a number between -448 and 448."""
    return unpack_e4m3x2(pack_e4m3x2(value, value))[0]


@cuda.jit(device=True)
def fp8_word(values, at):
    """Return the e4m3 codes of values[at : at + 4], packed in a 32-bit word."""
    return pack_e4m3x2(values[at], values[at + 1]) | pack_e4m3x2(values[at + 2], values[at + 3]) << uint32(16)


@cuda.jit(device=True)
def unpack_fp8(word, given, values, at):
    """values[at : at + 4] = the codes of a word as float32."""
    values[at], values[at + 1] = unpack_e4m3x2(word)
    values[at + 2], values[at + 3] = unpack_e4m3x2(word >> uint32(16))


@functools.cache
def make_pairs_of_eight(dtype: str):
    """Format.pairs_of_eight. Each weight is rounded once."""
    pack = PACK[dtype]

    @cuda.jit(device=True, forceinline=True)
    def of_two(word, scale):
        low, high = unpack_e4m3x2(word)
        return pack(low * scale, high * scale)

    @cuda.jit(device=True, forceinline=True)
    def pairs_of_eight(words, eight, scale):
        first, second = words[2 * eight], words[2 * eight + 1]
        return of_two(first, scale), of_two(first >> uint32(16), scale), of_two(second, scale), of_two(second >> uint32(16), scale)

    return pairs_of_eight


CODES = RowCodes(np.uint8, LARGEST, fp8_bits, fp8_number, fp8_word, multiply_fp8, mma_m16n8k32_e4m3, float32, "float8_e4m3fn")
FP8 = Format("fp8", Fp8Weight, quantize_fp8, dequantize_fp8_reference, 1, ADA, unpack_fp8, pairs_of_eight=make_pairs_of_eight, codes=CODES)
