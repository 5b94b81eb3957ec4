"""fp8 (e4m3) with a scale per 128 x 128 block of the weight and per 1 x 128 group of the activations (W8A8): its equations.

    scale[b, g] = max over the block of |matrix| / 448        code[n, k] = e4m3(matrix[n, k] / scale[b, g])
    out[m, n] = sum over g of (sum over k in g of x_code[m, k] * code[n, k]) * x_scale[m, g] * scale[b, g] + bias[n]

b is the block of output n, g that of input k. The last block of either axis may be smaller. Each output stores the number of its block,
so that a weight can stack several modules, each with blocks that count from its own first output.
The codes and their decoder are those of fp8.py.

Source: DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", section 3.3.2.
"""

from typing import Any, NamedTuple

import numpy as np

from minllm.kernels.quantization.decoder import Format
from minllm.kernels.quantization.fp8 import E4M3, LARGEST, to_codes, unpack_fp8
from minllm.kernels.quantization.groups import FP8_BLOCK
from minllm.runtime.device import ADA


class Fp8BlockWeight(NamedTuple):
    """An fp8 matrix [outputs, inputs] with a scale per block."""

    codes: Any  # uint8 [outputs, inputs], the bits of e4m3
    scales: Any  # float32 [blocks of outputs, blocks of inputs]
    blocks: Any  # int32 [outputs], the row of scales for each output


def by_blocks(matrix: np.ndarray, rows: int) -> np.ndarray:
    """matrix [outputs, inputs] as float32 [row blocks, rows, column blocks, 128], padded with zeros."""
    outputs, inputs = matrix.shape
    padded = np.zeros((-(-outputs // rows) * rows, -(-inputs // FP8_BLOCK) * FP8_BLOCK), np.float32)
    padded[:outputs, :inputs] = matrix
    return padded.reshape(-1, rows, padded.shape[1] // FP8_BLOCK, FP8_BLOCK)


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


def row_numbers(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """code * scale of rows in groups of 128, float32 [tokens, inputs]."""
    return codes.view(E4M3).astype(np.float32) * np.repeat(scales, FP8_BLOCK, axis=1)[:, : codes.shape[1]]


def quantize_fp8_block(matrix: np.ndarray) -> Fp8BlockWeight:
    """Quantise a matrix [outputs, inputs]."""
    rows = range(0, max(1, len(matrix)), FP8_BLOCK)
    parts = [quantize_blocks(matrix[first : first + FP8_BLOCK], FP8_BLOCK) for first in rows]
    codes, scales = (np.concatenate(one) for one in zip(*parts, strict=True))
    return Fp8BlockWeight(codes, scales, np.arange(len(matrix), dtype=np.int32) // FP8_BLOCK)


def dequantize_fp8_block_reference(weight: Fp8BlockWeight) -> np.ndarray:
    """code * scale, float32 [outputs, inputs]."""
    scales = np.repeat(weight.scales, FP8_BLOCK, axis=1)[weight.blocks, : weight.codes.shape[1]]
    return weight.codes.view(E4M3).astype(np.float32) * scales


FP8_BLOCKS = Format("fp8_block", Fp8BlockWeight, quantize_fp8_block, dequantize_fp8_block_reference, 1, ADA, unpack_fp8)
