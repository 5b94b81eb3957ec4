"""W4A16: NF4, 4-bit codes for normally distributed numbers, in blocks of 64 with quantised scales.

    w' = NF4_CODES[code] * absmax[block]                 absmax = the largest |w| of 64 inputs of a row
    absmax' = map[absmax_code] * nested[block // 256] + offset

The 16 codes are quantiles of the normal distribution between -1 and 1, including 0, so trained weights use each about equally often.
An absmax in float32 would cost half a bit per number. Double quantisation subtracts the mean of all absmax and stores the rest in one byte,
a code of an 8-bit floating-point map, with a scale per 256 blocks: 0.13 bits per number. Codes, blocks and map are those of bitsandbytes;
blocks are numbered along the rows of the matrix, one row after the other.

Each row stores the number of its first block, so that a weight can stack several modules, or hold some columns of a matrix, and keep their
original block numbers. Two neighbouring codes share a byte, the first in its upper half, as in bitsandbytes' files.

Source: Dettmers et al. 2023, "QLoRA: Efficient Finetuning of Quantized LLMs", section 3 and appendix E; Dettmers et al. 2022, "8-bit
Optimizers via Block-wise Quantization", section 2 (the map).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from minllm.runtime.array_protocol import Array
from minllm.weights.format import Allocator, LinearKernels, WeightFormat
from minllm.weights.pieces import in_pieces

BLOCK, NESTED_BLOCK = 64, 256  # numbers per absmax, and absmax per nested scale
TABLE_BYTES = 4 * (256 + 16)  # the map and the codes
NF4_CODES = np.array(
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
        -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ],
    np.float32,
)  # fmt: skip


class Nf4Weight(NamedTuple):
    """An NF4 matrix [outputs, inputs], two codes per byte."""

    codes: Any  # uint8 [outputs, inputs / 2]
    absmax: Any  # uint8 [inputs / 64, outputs], codes of `map`; float32 without double quantisation; why in this order: int4.py
    nested: Any  # float32 [blocks / 256, rounded up]; None without double quantisation
    map: Any  # float32 [256]
    offsets: Any  # float32 [outputs], the same for all rows of a module
    first_blocks: Any  # int32 [outputs], the number of a row's first block
    table: Any  # float32 [16], NF4_CODES


def dynamic_map() -> np.ndarray:
    """bitsandbytes' 8-bit map, ascending: 0, 1, and +-10**(e - 6) times 2**e fractions between 0.1 and 1."""
    values = [np.float32(0), np.float32(1)]
    for exponent in range(7):
        bounds = np.linspace(0.1, 1, 2**exponent + 1, dtype=np.float32)
        fractions = (bounds[:-1] + bounds[1:]) / 2 * np.float32(10.0 ** (exponent - 6))
        values += [*fractions, *-fractions]
    return np.sort(np.array(values, np.float32))


def nearest(values: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The index of the nearest entry of an ascending table, uint8."""
    middles = (table[:-1] + table[1:]) / 2
    if len(table) > len(NF4_CODES):
        return np.searchsorted(middles, values).astype(np.uint8)
    index = np.zeros(np.shape(values), np.uint8)
    for middle in middles:  # 15 vectorised comparisons take a sixth of the time of a search for each number
        index += values > middle
    return index


def pack_pairs(codes: np.ndarray) -> np.ndarray:
    """Pack codes, uint8 [..., inputs], into bytes [..., inputs / 2], the first of two codes in the upper half."""
    return codes[..., ::2] << 4 | codes[..., 1::2]


def unpack_pairs(packed: np.ndarray) -> np.ndarray:
    """The inverse of `pack_pairs`: one code per byte."""
    return np.stack([packed >> 4, packed & 15], axis=-1).reshape(*packed.shape[:-1], -1)


def quantize_blocks(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(codes, absmax) of rows [rows, inputs]: uint8 [rows, inputs / 2], packed, and float32 [rows, blocks]."""
    blocks = rows.astype(np.float32).reshape(len(rows), -1, BLOCK)
    absmax = np.abs(blocks).max(axis=2)
    inverse = np.divide(np.float32(1), absmax, out=np.zeros_like(absmax), where=absmax > 0)
    with np.errstate(invalid="ignore"):  # check_scales refuses NaN and infinity
        codes = nearest(blocks * inverse[..., None], NF4_CODES)
    return pack_pairs(codes.reshape(rows.shape)), absmax


def double_quantize(absmax: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.float32]:
    """(codes, nested, offset) of absmax [outputs, blocks]: uint8 of its shape, float32 [ceil(size / 256)], float32."""
    offset = absmax.mean(dtype=np.float32)
    centred = np.zeros(-(-absmax.size // NESTED_BLOCK) * NESTED_BLOCK, np.float32)
    with np.errstate(invalid="ignore"):  # check_scales refuses NaN and infinity
        centred[: absmax.size] = (absmax - offset).reshape(-1)
        blocks = centred.reshape(-1, NESTED_BLOCK)
        nested = np.abs(blocks).max(axis=1)
        inverse = np.divide(np.float32(1), nested, out=np.zeros_like(nested), where=nested > 0)
        codes = nearest(blocks * inverse[:, None], dynamic_map()).reshape(-1)[: absmax.size].reshape(absmax.shape)
    return codes, nested, offset


def double_quantized(codes: Any, absmax: np.ndarray) -> Nf4Weight:
    """The weight of one module from the results of `quantize_blocks`."""
    absmax_codes, nested, offset = double_quantize(absmax)
    outputs, blocks = absmax.shape
    first_blocks = np.arange(outputs, dtype=np.int32) * np.int32(blocks)
    offsets = np.full(outputs, offset, np.float32)
    return Nf4Weight(codes, np.ascontiguousarray(absmax_codes.T), nested, dynamic_map(), offsets, first_blocks, NF4_CODES)


@dataclass(frozen=True)
class Nf4Format(WeightFormat):
    """Nf4Weight: half a byte per element, 1 byte per block, 4 per 256 blocks, 8 per output, and two tables."""

    encodes_on_gpu = True

    nested: bool = True  # double quantisation

    def matrix_bytes(self, outputs: int, inputs: int) -> int:
        """Bytes of the codes, absmax, offsets, first blocks, nested scales and tables."""
        nested = 4 * -(-(outputs * inputs // BLOCK) // NESTED_BLOCK) if self.nested else 0
        return super().matrix_bytes(outputs, inputs) + nested + TABLE_BYTES

    def encode(self, matrix: np.ndarray) -> Nf4Weight:
        """Quantise a matrix [outputs, inputs]."""
        return double_quantized(*in_pieces(matrix, quantize_blocks))

    def encode_on(self, ops: Any, matrix: Array) -> Nf4Weight:
        """The codes; the magnitudes of the blocks, a 64th of the numbers, are quantised on the host, as their mean is that of all."""
        from minllm.kernels.encoding.nf4 import encode_nf4_blocks

        codes, absmax = encode_nf4_blocks(matrix, NF4_CODES, ops.empty, ops.stream)
        return self.place(ops, double_quantized(None, ops.to_host(absmax)))._replace(codes=codes)

    def dequantize(self, weight: Nf4Weight) -> np.ndarray:
        """table[code] * absmax, float32 [outputs, inputs]."""
        absmax = weight.absmax.T
        if weight.nested is not None:
            block = weight.first_blocks[:, None] + np.arange(absmax.shape[1])
            absmax = weight.map[absmax] * weight.nested[block // NESTED_BLOCK] + weight.offsets[:, None]
        codes = unpack_pairs(weight.codes).reshape(*absmax.shape, BLOCK)
        return (weight.table[codes] * absmax[..., None]).reshape(len(codes), -1)

    def without_contents(self, ops: Allocator, outputs: int, inputs: int) -> Nf4Weight:
        """A weight of this shape with unspecified contents."""
        blocks = inputs // BLOCK
        absmax = ops.empty((blocks, outputs), np.uint8 if self.nested else np.float32)
        nested = ops.empty((-(-outputs * blocks // NESTED_BLOCK),), np.float32) if self.nested else None
        sizes = (((256,), np.float32), ((outputs,), np.float32), ((outputs,), np.int32), ((16,), np.float32))
        return Nf4Weight(ops.empty((outputs, inputs // 2), np.uint8), absmax, nested, *(ops.empty(*one) for one in sizes))

    @property
    def kernels(self) -> LinearKernels:
        """The kernels of kernels/matmul/quantized."""
        from minllm.weights.quantized_kernels import NF4  # imported here so that a plan loads no kernels

        return NF4
