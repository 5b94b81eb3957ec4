"""W8A8 in fp8 (e4m3): a scale per 128 x 128 block of the weight and per 1 x 128 group of the activations.

    scale[b, g] = max over the block of |matrix| / 448        code[n, k] = e4m3(matrix[n, k] / scale[b, g])
    out[m, n] = sum over g of (sum over k in g of x_code[m, k] * code[n, k]) * x_scale[m, g] * scale[b, g] + bias[n]

b is the block of output n, g that of input k. The last block of either axis may be smaller. Each output stores the number of its block,
so that a weight can stack several modules, each with blocks that count from its own first output.

Source: DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", section 3.3.2.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from minllm.weights.format import Allocator, LinearKernels, WeightFormat
from minllm.weights.fp8 import E4M3, LARGEST

BLOCK = 128


class Fp8BlockWeight(NamedTuple):
    """An fp8 matrix [outputs, inputs] with a scale per block."""

    codes: Any  # uint8 [outputs, inputs], the bits of e4m3
    scales: Any  # float32 [blocks of outputs, blocks of inputs]
    blocks: Any  # int32 [outputs], the row of scales for each output


def to_codes(numbers: np.ndarray) -> np.ndarray:
    """The bits of the nearest e4m3, uint8; numbers beyond +-448 become +-448."""
    with np.errstate(invalid="ignore"):  # check_scales refuses NaN and infinity
        return np.clip(numbers, -LARGEST, LARGEST).astype(E4M3).view(np.uint8)


def by_blocks(matrix: np.ndarray, rows: int) -> np.ndarray:
    """matrix [outputs, inputs] as float32 [row blocks, rows, column blocks, 128], padded with zeros."""
    outputs, inputs = matrix.shape
    padded = np.zeros((-(-outputs // rows) * rows, -(-inputs // BLOCK) * BLOCK), np.float32)
    padded[:outputs, :inputs] = matrix
    return padded.reshape(-1, rows, padded.shape[1] // BLOCK, BLOCK)


def quantize_blocks(matrix: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """(codes, scales) in blocks of rows x 128: uint8 [outputs, inputs], float32 [row blocks, column blocks]."""
    blocks = by_blocks(matrix, rows)
    scales = np.abs(blocks).max(axis=(1, 3)) * np.float32(1 / LARGEST)
    inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales > 0)
    blocks *= inverse[:, None, :, None]
    codes = to_codes(blocks).reshape(len(blocks) * rows, -1)
    return np.ascontiguousarray(codes[: matrix.shape[0], : matrix.shape[1]]), scales


def quantize_row_groups(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(codes, scales) of activations in groups of 128: uint8 [tokens, inputs], float32 [tokens, groups]."""
    return quantize_blocks(x, 1)


@dataclass(frozen=True)
class Fp8BlockFormat(WeightFormat):
    """The format of Fp8BlockWeight: 1 byte per element, 4 bytes per block, and 4 per output."""

    def matrix_bytes(self, outputs: int, inputs: int) -> int:
        """Bytes of the codes, the block number of each output, and the scales."""
        return super().matrix_bytes(outputs, inputs) + 4 * -(-outputs // BLOCK) * -(-inputs // BLOCK)

    def encode(self, matrix: np.ndarray) -> Fp8BlockWeight:
        """Quantise a matrix [outputs, inputs]."""
        rows = range(0, max(1, len(matrix)), BLOCK)
        parts = [quantize_blocks(matrix[first : first + BLOCK], BLOCK) for first in rows]
        codes, scales = (np.concatenate(one) for one in zip(*parts, strict=True))
        return Fp8BlockWeight(codes, scales, np.arange(len(matrix), dtype=np.int32) // BLOCK)

    def dequantize(self, weight: Fp8BlockWeight) -> np.ndarray:
        """code * scale, float32 [outputs, inputs]."""
        scales = np.repeat(weight.scales, BLOCK, axis=1)[weight.blocks, : weight.codes.shape[1]]
        return weight.codes.view(E4M3).astype(np.float32) * scales

    def without_contents(self, ops: Allocator, outputs: int, inputs: int) -> Fp8BlockWeight:
        """A weight of this shape with unspecified contents."""
        scales = ops.empty((-(-outputs // BLOCK), -(-inputs // BLOCK)), np.float32)
        return Fp8BlockWeight(ops.empty((outputs, inputs), np.uint8), scales, ops.empty((outputs,), np.int32))

    def linear(
        self, x: np.ndarray, weight: Fp8BlockWeight, bias: np.ndarray | None = None, out_dtype: DTypeLike | None = None
    ) -> np.ndarray:
        """The NumPy reference: x is quantised in groups, then dequantised like the weight; float32 matmul."""
        codes, scales = quantize_row_groups(x)
        rows = codes.view(E4M3).astype(np.float32) * np.repeat(scales, BLOCK, axis=1)[:, : x.shape[1]]
        out = rows @ self.dequantize(weight).T
        return (out if bias is None else out + bias).astype(x.dtype if out_dtype is None else out_dtype)

    def workspace_bytes(self, rows: int, outputs: int, inputs: int, itemsize: int) -> int:
        """Bytes of the widened matrix, and of the codes of x as numbers."""
        return (outputs + rows) * inputs * itemsize

    @property
    def kernels(self) -> LinearKernels:
        """The kernels of kernels/matmul/quantized."""
        from minllm.weights.quantized_kernels import FP8_BLOCK  # imported here so that a plan loads no kernels

        return FP8_BLOCK
