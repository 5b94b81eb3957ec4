"""W8A8 in fp8 (e4m3): weights with a scale per output channel, activations with a scale per token.

    scale[n] = max over k of |matrix[n, k]| / 448        code[n, k] = e4m3(matrix[n, k] / scale[n])
    out[m, n] = (sum over k of x_code[m, k] * code[n, k]) * x_scale[m] * scale[n] + bias[n]

e4m3 has 4 bits of exponent and 3 of fraction, and 448 is its largest number. Its steps grow with the number, so in a row with outliers
small numbers keep their three bits, while int8 leaves them none.

Source: Micikevicius et al. 2022, "FP8 Formats for Deep Learning", section 3; vLLM, "FP8 W8A8" (dynamic scales per token and channel).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from minllm.runtime.array_protocol import Array
from minllm.weights.format import Allocator, LinearKernels, WeightFormat
from minllm.weights.pieces import in_pieces

E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
LARGEST = 448


class Fp8Weight(NamedTuple):
    """An fp8 matrix [outputs, inputs], or rows of activations [tokens, inputs]."""

    codes: Any  # uint8 [outputs, inputs], the bits of e4m3
    scales: Any  # float32 [outputs]


def quantize_fp8(rows: np.ndarray) -> Fp8Weight:
    """Quantise rows [rows, inputs] to the nearest codes, with a scale per row. A row of zeros has scale 0."""
    rows = rows.astype(np.float32)
    scales = np.abs(rows).max(axis=1, initial=0) * np.float32(1 / LARGEST)
    inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales > 0)
    with np.errstate(invalid="ignore"):  # check_scales refuses NaN and infinity
        return Fp8Weight(np.clip(rows * inverse[:, None], -LARGEST, LARGEST).astype(E4M3).view(np.uint8), scales)


@dataclass(frozen=True)
class Fp8Format(WeightFormat):
    """The format of Fp8Weight: 1 byte per element and 4 bytes per output channel."""

    encodes_on_gpu = has_experts = True

    def encode_on(self, ops: Any, matrix: Array) -> Fp8Weight:
        """A row of weights is encoded as a row of activations is."""
        from minllm.kernels.matmul.quantized.rows import quantize_rows  # imported here so that a plan loads no kernels

        rows = quantize_rows(matrix, ops.empty, ops.stream, "fp8")
        return Fp8Weight(rows.codes, rows.scales)

    def encode(self, matrix: np.ndarray) -> Fp8Weight:
        """Quantise a matrix [outputs, inputs]."""
        return Fp8Weight(*in_pieces(matrix, quantize_fp8))

    def dequantize(self, weight: Fp8Weight) -> np.ndarray:
        """code * scale, float32 [outputs, inputs]."""
        return weight.codes.view(E4M3).astype(np.float32) * weight.scales[:, None]

    def without_contents(self, ops: Allocator, outputs: int, inputs: int) -> Fp8Weight:
        """A weight of this shape with unspecified contents."""
        return Fp8Weight(ops.empty((outputs, inputs), np.uint8), ops.empty((outputs,), np.float32))

    def linear(self, x: np.ndarray, weight: Fp8Weight, bias: np.ndarray | None = None, out_dtype: DTypeLike | None = None) -> np.ndarray:
        """The NumPy reference with quantised x: codes are multiplied and summed in float32."""
        rows = quantize_fp8(x)
        sums = rows.codes.view(E4M3).astype(np.float32) @ weight.codes.view(E4M3).astype(np.float32).T
        out = sums * rows.scales[:, None] * weight.scales
        return (out if bias is None else out + bias).astype(x.dtype if out_dtype is None else out_dtype)

    def workspace_bytes(self, rows: int, outputs: int, inputs: int, itemsize: int) -> int:
        """Bytes of the widened matrix, the codes of x as numbers, and the float32 sums."""
        return outputs * inputs * itemsize + rows * (inputs * itemsize + 4 * outputs)

    @property
    def kernels(self) -> LinearKernels:
        """The kernels of kernels/matmul/quantized."""
        from minllm.weights.quantized_kernels import FP8  # imported here so that a plan loads no kernels

        return FP8
