"""fp8 (e4m3) in blocks of 128 x 128 with a scale each, multiplied by activations that are fp8 in groups of 1 x 128.

    scale[b, g] = max over the block of |matrix| / 448        code[n, k] = e4m3(matrix[n, k] / scale[b, g])
    out[m, n] = sum over g of (sum over k in g of x_code[m, k] * code[n, k]) * x_scale[m, g] * scale[b, g] + bias[n]

b and g are the block of output n and of input k. The last block of either axis may be smaller. A row stores the number of its block, so
that a weight can hold several modules whose blocks were counted from their own first outputs.

Source: DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", section 3.3.2.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from minllm.weights.format import LinearKernels, WeightFormat
from minllm.weights.fp8 import E4M3, LARGEST

BLOCK = 128


class Fp8BlockWeight(NamedTuple):
    """A weight [outputs, inputs]."""

    codes: Any  # uint8 [outputs, inputs], the bits of e4m3
    scales: Any  # float32 [blocks of outputs, blocks of inputs]
    blocks: Any  # int32 [outputs], the row of scales for each output


def to_codes(numbers: np.ndarray) -> np.ndarray:
    """The bits of the nearest e4m3, uint8; what is larger than its largest number becomes that."""
    with np.errstate(invalid="ignore"):  # NaN and infinity are refused by their scales
        return np.clip(numbers, -LARGEST, LARGEST).astype(E4M3).view(np.uint8)


def by_blocks(matrix: np.ndarray, rows: int) -> np.ndarray:
    """matrix [outputs, inputs] as float32 [row blocks, rows, column blocks, 128], with zeros behind the last block."""
    outputs, inputs = matrix.shape
    padded = np.zeros((-(-outputs // rows) * rows, -(-inputs // BLOCK) * BLOCK), np.float32)
    padded[:outputs, :inputs] = matrix
    return padded.reshape(-1, rows, padded.shape[1] // BLOCK, BLOCK)


def quantize_blocks(matrix: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """(codes, scales) of blocks of rows x 128: uint8 [outputs, inputs] and float32 [row blocks, column blocks]."""
    blocks = by_blocks(matrix, rows)
    scales = np.abs(blocks).max(axis=(1, 3)) * np.float32(1 / LARGEST)
    inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales > 0)
    blocks *= inverse[:, None, :, None]
    codes = to_codes(blocks).reshape(len(blocks) * rows, -1)
    return np.ascontiguousarray(codes[: matrix.shape[0], : matrix.shape[1]]), scales


def quantize_row_groups(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(codes, scales) of rows of activations [tokens, inputs] in groups of 128 inputs."""
    return quantize_blocks(x, 1)


@dataclass(frozen=True)
class Fp8BlockFormat(WeightFormat):
    """A byte per number, 4 bytes per block, and 4 per output."""

    def matrix_bytes(self, outputs: int, inputs: int) -> int:
        """Codes, the block of each output, and scales."""
        return super().matrix_bytes(outputs, inputs) + 4 * -(-outputs // BLOCK) * -(-inputs // BLOCK)

    def encode(self, matrix: np.ndarray) -> Fp8BlockWeight:
        """Codes and scales of a matrix [outputs, inputs]."""
        rows = range(0, max(1, len(matrix)), BLOCK)
        parts = [quantize_blocks(matrix[first : first + BLOCK], BLOCK) for first in rows]
        codes, scales = (np.concatenate(one) for one in zip(*parts, strict=True))
        return Fp8BlockWeight(codes, scales, np.arange(len(matrix), dtype=np.int32) // BLOCK)

    def dequantize(self, weight: Fp8BlockWeight) -> np.ndarray:
        """code * scale."""
        scales = np.repeat(weight.scales, BLOCK, axis=1)[weight.blocks, : weight.codes.shape[1]]
        return weight.codes.view(E4M3).astype(np.float32) * scales

    def without_contents(self, ops: Any, outputs: int, inputs: int) -> Fp8BlockWeight:
        """The arrays of a weight of this shape."""
        scales = ops.empty((-(-outputs // BLOCK), -(-inputs // BLOCK)), np.float32)
        return Fp8BlockWeight(ops.empty((outputs, inputs), np.uint8), scales, ops.empty((outputs,), np.int32))

    def linear(self, x: np.ndarray, weight: Fp8BlockWeight, bias: np.ndarray | None = None, out_dtype: Any = None) -> np.ndarray:
        """The reference: rows of x are quantised in groups, and the numbers that codes stand for are multiplied in float32."""
        codes, scales = quantize_row_groups(x)
        rows = codes.view(E4M3).astype(np.float32) * np.repeat(scales, BLOCK, axis=1)[:, : x.shape[1]]
        out = rows @ self.dequantize(weight).T
        return (out if bias is None else out + bias).astype(x.dtype if out_dtype is None else out_dtype)

    def workspace_bytes(self, rows: int, outputs: int, inputs: int, itemsize: int) -> int:
        """The widened matrix, and rows of x as the numbers of their codes."""
        return (outputs + rows) * inputs * itemsize

    @property
    def kernels(self) -> LinearKernels:
        """kernels/matmul/quantized."""
        from minllm.weights.quantized_kernels import FP8_BLOCK  # here, so that a plan needs no kernels

        return FP8_BLOCK
