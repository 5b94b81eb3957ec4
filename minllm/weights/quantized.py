"""The quantised formats: sizes, and which equations and kernels belong to them.

Layouts, equations and decoders are those of kernels/quantization, one file per format: int8.py, fp8.py, fp8_block.py, int8_groups.py,
int4.py, nf4.py. They are imported when a matrix is encoded or decoded, so that a plan loads no kernels.
"""

import functools
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from minllm.kernels.quantization.groups import FP8_BLOCK, NESTED_BLOCK, NF4_BLOCK
from minllm.runtime.array_protocol import Array
from minllm.weights.format import Allocator, LinearKernels, WeightFormat
from minllm.weights.pieces import in_pieces

Arrays: TypeAlias = tuple[tuple[tuple[int, ...], DTypeLike] | None, ...]  # (shape, dtype) of each array of a weight; None for an absent one
TABLE_BYTES = 4 * (256 + 16)  # NF4's map and codes


class QuantizedFormat(WeightFormat):
    """A format with a `codec` in kernels/quantization."""

    @property
    def codec(self) -> Any:
        """The Format (kernels/quantization/decoder.py)."""
        raise NotImplementedError

    def arrays(self, outputs: int, inputs: int) -> Arrays:
        """Shapes and dtypes of a weight."""
        raise NotImplementedError

    def encode(self, matrix: np.ndarray) -> Any:
        """Quantise a matrix [outputs, inputs]."""
        return self.codec.weight(*in_pieces(matrix, self.codec.quantize))

    def dequantize(self, weight: Any) -> np.ndarray:
        """The float32 matrix [outputs, inputs] that a weight's host arrays represent."""
        return self.codec.dequantize(weight)

    def without_contents(self, ops: Allocator, outputs: int, inputs: int) -> Any:
        """A weight of this shape with unspecified contents."""
        return self.codec.weight(*(None if one is None else ops.empty(*one) for one in self.arrays(outputs, inputs)))

    @property
    def kernels(self) -> LinearKernels:
        """The kernels of kernels/matmul/quantized."""
        from minllm.weights.quantized_kernels import KERNELS

        return KERNELS[self.codec.name]


@dataclass(frozen=True)
class RowFormat(QuantizedFormat):
    """W8A8: 1 byte per element and 4 bytes per output channel; activations are quantised by the same equations."""

    encodes_on_gpu = True

    def encode_on(self, ops: Any, matrix: Array) -> Any:
        """A row of weights is encoded as a row of activations is."""
        from minllm.kernels.matmul.quantized.rows import quantize_rows

        rows = quantize_rows(matrix, ops.empty, ops.stream, self.codec.name)
        return self.codec.weight(rows.codes.view(self.codec.codes.dtype), rows.scales)

    def arrays(self, outputs: int, inputs: int) -> Arrays:
        """Codes and scales."""
        return ((outputs, inputs), self.codec.codes.dtype), ((outputs,), np.float32)

    def linear(self, x: np.ndarray, weight: Any, bias: np.ndarray | None = None, out_dtype: DTypeLike | None = None) -> np.ndarray:
        """The NumPy reference with quantised x."""
        rows = self.codec.quantize(x)
        out = self.codec.codes.multiply(rows.codes, weight.codes) * rows.scales[:, None] * weight.scales
        return (out if bias is None else out + bias).astype(x.dtype if out_dtype is None else out_dtype)

    def workspace_bytes(self, rows: int, outputs: int, inputs: int, itemsize: int) -> int:
        """Bytes of the widened matrix, the codes of x as numbers, and the float32 sums."""
        return outputs * inputs * itemsize + rows * (inputs * itemsize + 4 * outputs)


class Int8Format(RowFormat):
    """The format of Int8Weight."""

    @property
    def codec(self) -> Any:
        """int8.py's."""
        from minllm.kernels.quantization.int8 import INT8

        return INT8


class Fp8Format(RowFormat):
    """The format of Fp8Weight."""

    has_experts = True

    @property
    def codec(self) -> Any:
        """fp8.py's."""
        from minllm.kernels.quantization.fp8 import FP8

        return FP8


@dataclass(frozen=True)
class Fp8BlockFormat(QuantizedFormat):
    """The format of Fp8BlockWeight: 1 byte per element, 4 bytes per block, and 4 per output."""

    @property
    def codec(self) -> Any:
        """fp8_block.py's."""
        from minllm.kernels.quantization.fp8_block import FP8_BLOCKS

        return FP8_BLOCKS

    def matrix_bytes(self, outputs: int, inputs: int) -> int:
        """Bytes of the codes, the block number of each output, and the scales."""
        return super().matrix_bytes(outputs, inputs) + 4 * -(-outputs // FP8_BLOCK) * -(-inputs // FP8_BLOCK)

    def encode(self, matrix: np.ndarray) -> Any:
        """Quantise a matrix [outputs, inputs]."""
        return self.codec.quantize(matrix)

    def arrays(self, outputs: int, inputs: int) -> Arrays:
        """Codes, scales, and the block of each output."""
        blocks = -(-outputs // FP8_BLOCK), -(-inputs // FP8_BLOCK)
        return ((outputs, inputs), np.uint8), (blocks, np.float32), ((outputs,), np.int32)

    def linear(self, x: np.ndarray, weight: Any, bias: np.ndarray | None = None, out_dtype: DTypeLike | None = None) -> np.ndarray:
        """The NumPy reference: x is quantised in groups, then dequantised like the weight; float32 matmul."""
        from minllm.kernels.quantization.fp8_block import quantize_row_groups, row_numbers

        out = row_numbers(*quantize_row_groups(x)) @ self.dequantize(weight).T
        return (out if bias is None else out + bias).astype(x.dtype if out_dtype is None else out_dtype)

    def workspace_bytes(self, rows: int, outputs: int, inputs: int, itemsize: int) -> int:
        """Bytes of the widened matrix, and of the codes of x as numbers."""
        return (outputs + rows) * inputs * itemsize


@dataclass(frozen=True)
class Int8GroupFormat(QuantizedFormat):
    """The format of Int8GroupWeight: 1 byte per element and 2 bytes per group. Only files store it."""

    scale_dtype: np.dtype = np.dtype(np.float16)

    @property
    def codec(self) -> Any:
        """int8_groups.py's."""
        from minllm.kernels.quantization.int8_groups import INT8_GROUPS

        return INT8_GROUPS

    def encode(self, matrix: np.ndarray) -> Any:
        """Raises NotImplementedError."""
        return WeightFormat.encode(self, matrix)

    def arrays(self, outputs: int, inputs: int) -> Arrays:
        """Codes and scales."""
        return ((outputs, inputs), np.int8), ((inputs // (self.group_size or inputs), outputs), self.scale_dtype)


@dataclass(frozen=True)
class Int4Format(QuantizedFormat):
    """The format of Int4Weight: half a byte per element, and 2 bytes per group, 3 with zeros."""

    own_stage = "int4_matmul"
    encodes_on_gpu = True

    has_zeros: bool = False
    has_minimums: bool = False
    scale_dtype: np.dtype = np.dtype(np.float16)

    @property
    def has_experts(self) -> bool:
        """Whether kernels/experts multiplies by it: only symmetric groups."""
        return not (self.has_zeros or self.has_minimums)

    @property
    def codec(self) -> Any:
        """int4.py's."""
        from minllm.kernels.quantization.int4 import INT4

        return INT4

    def encode(self, matrix: np.ndarray) -> Any:
        """Quantise a matrix [outputs, inputs]."""
        quantize = functools.partial(self.codec.quantize, group_size=self.group_size, has_zeros=self.has_zeros)
        return self.codec.weight.of_rows(*in_pieces(matrix, quantize))

    def encode_on(self, ops: Any, matrix: Array) -> Any:
        """In groups, with or without zero points (kernels/encoding/int4.py)."""
        from minllm.kernels.encoding.int4 import encode_int4

        return self.codec.weight(*encode_int4(matrix, ops.empty, self.group_size, self.has_zeros, ops.stream))

    def arrays(self, outputs: int, inputs: int) -> Arrays:
        """Codes, scales, zeros and minimums."""
        groups = inputs // (self.group_size or inputs), outputs
        zeros, minimums = (groups, np.uint8) if self.has_zeros else None, (groups, self.scale_dtype) if self.has_minimums else None
        return ((outputs, inputs // 2), np.uint8), (groups, self.scale_dtype), zeros, minimums


@dataclass(frozen=True)
class Nf4Format(QuantizedFormat):
    """Nf4Weight: half a byte per element, 1 byte per block, 4 per 256 blocks, 8 per output, and two tables."""

    encodes_on_gpu = True

    nested: bool = True  # double quantisation

    @property
    def codec(self) -> Any:
        """nf4.py's."""
        from minllm.kernels.quantization.nf4 import NF4

        return NF4

    def matrix_bytes(self, outputs: int, inputs: int) -> int:
        """Bytes of the codes, absmax, offsets, first blocks, nested scales and tables."""
        nested = 4 * -(-(outputs * inputs // NF4_BLOCK) // NESTED_BLOCK) if self.nested else 0
        return super().matrix_bytes(outputs, inputs) + nested + TABLE_BYTES

    def encode(self, matrix: np.ndarray) -> Any:
        """Quantise a matrix [outputs, inputs]."""
        from minllm.kernels.quantization.nf4 import double_quantized

        return double_quantized(*in_pieces(matrix, self.codec.quantize))

    def encode_on(self, ops: Any, matrix: Array) -> Any:
        """The codes; the magnitudes of the blocks, a 64th of the numbers, are quantised on the host, as their mean is that of all."""
        from minllm.kernels.encoding.nf4 import encode_nf4_blocks
        from minllm.kernels.quantization.nf4 import NF4_CODES, double_quantized

        codes, absmax = encode_nf4_blocks(matrix, NF4_CODES, ops.empty, ops.stream)
        return self.place(ops, double_quantized(None, ops.to_host(absmax)))._replace(codes=codes)

    def arrays(self, outputs: int, inputs: int) -> Arrays:
        """Codes, absmax, nested scales, map, offsets, first blocks and codes' numbers."""
        blocks = inputs // NF4_BLOCK
        nested = ((-(-outputs * blocks // NESTED_BLOCK),), np.float32) if self.nested else None
        absmax = (blocks, outputs), np.uint8 if self.nested else np.float32
        of_rows = ((outputs,), np.float32), ((outputs,), np.int32)
        return ((outputs, inputs // 2), np.uint8), absmax, nested, ((256,), np.float32), *of_rows, ((16,), np.float32)
