"""W8A8 in int8: weights with a scale per output channel, activations with a scale per token.

    scale[n] = max over k of |matrix[n, k]| / 127        code[n, k] = round(matrix[n, k] / scale[n])
    out[m, n] = (sum over k of x_code[m, k] * code[n, k]) * x_scale[m] * scale[n] + bias[n]

Rows of x are quantised by the same equations, so the sum is over integers, and both scales are applied after it. A row of x has one
scale, so a channel that is 100 times larger than the others leaves them a 100th of the codes: int8 activations lose accuracy to outliers.

Source: Dettmers et al. 2022, "LLM.int8()", section 2.1 (vector-wise quantisation); Xiao et al. 2023, "SmoothQuant", section 3.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from minllm.runtime.array_protocol import Array
from minllm.weights.format import Allocator, LinearKernels, WeightFormat
from minllm.weights.pieces import in_pieces

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


@dataclass(frozen=True)
class Int8Format(WeightFormat):
    """The format of Int8Weight: 1 byte per element and 4 bytes per output channel."""

    encodes_on_gpu = True

    def encode_on(self, ops: Any, matrix: Array) -> Int8Weight:
        """A row of weights is encoded as a row of activations is."""
        from minllm.kernels.matmul.quantized.rows import quantize_rows  # imported here so that a plan loads no kernels

        rows = quantize_rows(matrix, ops.empty, ops.stream, "int8")
        return Int8Weight(rows.codes.view(np.int8), rows.scales)

    def encode(self, matrix: np.ndarray) -> Int8Weight:
        """Quantise a matrix [outputs, inputs]."""
        return Int8Weight(*in_pieces(matrix, quantize_int8))

    def dequantize(self, weight: Int8Weight) -> np.ndarray:
        """code * scale, float32 [outputs, inputs]."""
        return weight.codes.astype(np.float32) * weight.scales[:, None]

    def without_contents(self, ops: Allocator, outputs: int, inputs: int) -> Int8Weight:
        """A weight of this shape with unspecified contents."""
        return Int8Weight(ops.empty((outputs, inputs), np.int8), ops.empty((outputs,), np.float32))

    def linear(self, x: np.ndarray, weight: Int8Weight, bias: np.ndarray | None = None, out_dtype: DTypeLike | None = None) -> np.ndarray:
        """The NumPy reference with quantised x; its sums are exact: float64 holds integers up to 2**53."""
        rows = quantize_int8(x)
        sums = (rows.codes.astype(np.float64) @ weight.codes.astype(np.float64).T).astype(np.float32)
        out = sums * rows.scales[:, None] * weight.scales
        return (out if bias is None else out + bias).astype(x.dtype if out_dtype is None else out_dtype)

    def workspace_bytes(self, rows: int, outputs: int, inputs: int, itemsize: int) -> int:
        """Bytes of the widened matrix, the codes of x as numbers, and the float32 sums."""
        return outputs * inputs * itemsize + rows * (inputs * itemsize + 4 * outputs)

    @property
    def kernels(self) -> LinearKernels:
        """The kernels of kernels/matmul/quantized."""
        from minllm.weights.quantized_kernels import INT8  # imported here so that a plan loads no kernels

        return INT8
