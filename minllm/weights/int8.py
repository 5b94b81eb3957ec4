"""int8 with a scale per output channel, multiplied by activations that are int8 with a scale per token: W8A8.

    scale[n] = max over k of |matrix[n, k]| / 127        code[n, k] = round(matrix[n, k] / scale[n])
    out[m, n] = (sum over k of x_code[m, k] * code[n, k]) * x_scale[m] * scale[n] + bias[n]

Rows of x are quantised by the same equations, so the sum is one of integers, and both scales leave it. A row of x has one scale, so one
channel that is 100 times larger than the others leaves them a 100th of the codes: outliers are what int8 activations lose accuracy to.

Source: Dettmers et al. 2022, "LLM.int8()", section 2.1 (vector-wise quantisation); Xiao et al. 2023, "SmoothQuant", section 3.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from minllm.weights.format import LinearKernels, WeightFormat
from minllm.weights.pieces import in_pieces

LEVELS = 127  # the code -128 is not used, so that codes are symmetric


class Int8Weight(NamedTuple):
    """A weight [outputs, inputs], or rows of activations [tokens, inputs]."""

    codes: Any  # int8 [outputs, inputs]
    scales: Any  # float32 [outputs]


def quantize_int8(rows: np.ndarray) -> Int8Weight:
    """Codes and scales of rows [rows, inputs], to the nearest code. A row of zeros has scale 0."""
    rows = rows.astype(np.float32)
    scales = np.abs(rows).max(axis=1, initial=0) * np.float32(1 / LEVELS)
    inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales > 0)
    with np.errstate(invalid="ignore"):  # NaN and infinity are refused by their scales
        return Int8Weight(np.clip(np.rint(rows * inverse[:, None]), -LEVELS, LEVELS).astype(np.int8), scales)


@dataclass(frozen=True)
class Int8Format(WeightFormat):
    """A byte per number and 4 bytes per output channel."""

    def encode(self, matrix: np.ndarray) -> Int8Weight:
        """Codes and scales of a matrix [outputs, inputs]."""
        return Int8Weight(*in_pieces(matrix, quantize_int8))

    def dequantize(self, weight: Int8Weight) -> np.ndarray:
        """code * scale."""
        return weight.codes.astype(np.float32) * weight.scales[:, None]

    def without_contents(self, ops: Any, outputs: int, inputs: int) -> Int8Weight:
        """The arrays of a weight of this shape."""
        return Int8Weight(ops.empty((outputs, inputs), np.int8), ops.empty((outputs,), np.float32))

    def linear(self, x: np.ndarray, weight: Int8Weight, bias: np.ndarray | None = None, out_dtype: Any = None) -> np.ndarray:
        """The reference: rows of x are quantised; the sum of integers is exact, because float64 holds integers up to 2**53."""
        rows = quantize_int8(x)
        sums = (rows.codes.astype(np.float64) @ weight.codes.astype(np.float64).T).astype(np.float32)
        out = sums * rows.scales[:, None] * weight.scales
        return (out if bias is None else out + bias).astype(x.dtype if out_dtype is None else out_dtype)

    def workspace_bytes(self, rows: int, outputs: int, inputs: int, itemsize: int) -> int:
        """The widened matrix, codes of x as numbers, and float32 sums."""
        return outputs * inputs * itemsize + rows * (inputs * itemsize + 4 * outputs)

    @property
    def kernels(self) -> LinearKernels:
        """kernels/matmul/quantized."""
        from minllm.weights.quantized_kernels import INT8  # here, so that a plan needs no kernels

        return INT8
