"""A weight format of one file: a sign per number and a scale per row, made while loading.

    weight[n, k] = scale[n] * sign[n, k],  sign = -1 or 1 as int8,  scale[n] = mean over k of |matrix[n, k]|
"""  # fmt: skip

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import cuda, float32

from minllm.kernels.arguments import ceil_div
from minllm.runtime.kernel import kernel, launch
from minllm.weights.format import LinearKernels, WeightFormat

BLOCK = 64


class SignedRows(NamedTuple):
    """A weight [outputs, inputs]."""

    signs: np.ndarray  # int8 [outputs, inputs]
    scales: np.ndarray  # float32 [outputs]


@kernel
def signed_linear_kernel(x, signs, scales, bias, out):
    """One thread per output: x [M, K], signs [N, K], scales [N], out [M, N]."""
    column, row = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x, cuda.blockIdx.y
    if column < out.shape[1]:
        total, scale = float32(0.0), scales[column]
        for k in range(x.shape[1]):
            total += float32(x[row, k]) * (scale * float32(signs[column, k]))
        if bias is not None:
            total += float32(bias[column])
        out[row, column] = total


def signed_linear(x, weight, out, bias=None, stream=None) -> None:
    """Write x @ weight.T + bias into `out`."""
    launch(signed_linear_kernel, (ceil_div(out.shape[1], BLOCK), x.shape[0]), (BLOCK,), (x, *weight, bias, out), stream=stream)


@dataclass(frozen=True)
class SignAndScale(WeightFormat):
    """One byte per number, and four per row."""

    def matrix_bytes(self, outputs: int, inputs: int) -> int:
        return outputs * inputs + 4 * outputs

    def encode(self, matrix: np.ndarray) -> SignedRows:
        matrix = matrix.astype(np.float32)
        return SignedRows(np.where(matrix < 0, -1, 1).astype(np.int8), np.abs(matrix).mean(axis=1, dtype=np.float32))

    def dequantize(self, weight: SignedRows) -> np.ndarray:
        return weight.scales[:, None] * weight.signs

    @property
    def kernels(self) -> LinearKernels:
        return LinearKernels(variants={"naive": signed_linear}, choose=lambda x, weight: "naive")


SIGN_AND_SCALE = SignAndScale("toy", matrix_itemsize=1, rates=("bf16_tflops", "fp16_tflops"))
