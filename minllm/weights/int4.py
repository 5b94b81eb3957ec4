"""W4A16: int4 in groups of 32, 64 or 128 inputs that share a scale and, optionally, a zero point.

    symmetric   scale = max |w| / 7                      code = round(w / scale) + 8       w' = (code - 8) * scale
    with zeros  scale = (max(w, 0) - min(w, 0)) / 15     zero = round(-min(w, 0) / scale)
                code = round(w / scale) + zero           w' = (code - zero) * scale
    minimums    stored by some files                     w' = code * scale + minimum

max and min are those of a group; codes and zeros are 0 to 15. The scale is rounded to float16 before the codes are computed, so that codes
match the stored scale. |w - w'| is at most half a step, except for the rounding of the scale and, with zeros, of the zero point. A
symmetric group leaves the code 0 unused: a scale of max |w| / 7.5 would use it, but would clip the largest numbers to 7 steps, which
shrinks dot products.

Two codes share a byte, in an order that a kernel unpacks quickly (kernels/quantization/reference.py, `pack_nibbles`). With groups of 32 a
weight takes 4.5 bits, with zeros 4.75.

Source: Frantar et al. 2023, "GPTQ", section 4 (the grid, without its error compensation); Lin et al. 2024, "AWQ", equation 1.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from minllm.runtime.array_protocol import Array
from minllm.weights.format import Allocator, LinearKernels, WeightFormat
from minllm.weights.pieces import in_pieces

LARGEST_CODE, MIDDLE = 15, 8


class Int4Weight(NamedTuple):
    """An int4 matrix [outputs, inputs], two codes per byte.

    A kernel computes neighbouring outputs at once, so the scales of a group's outputs are neighbours in memory.
    """

    codes: Any  # uint8 [outputs, inputs / 2]
    scales: Any  # float [groups, outputs]; float16 if quantised while loading
    zeros: Any = None  # uint8 [groups, outputs]; None: all are MIDDLE
    minimums: Any = None  # float [groups, outputs], used in place of zeros; or None

    @classmethod
    def of_rows(
        cls, codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None = None, minimums: np.ndarray | None = None
    ) -> "Int4Weight":
        """The weight with these scales, zeros and minimums [outputs, groups], which are transposed."""
        return cls(codes, *(None if one is None else np.ascontiguousarray(one.T) for one in (scales, zeros, minimums)))


@dataclass(frozen=True)
class Int4Format(WeightFormat):
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

    def encode(self, matrix: np.ndarray) -> Int4Weight:
        """Quantise a matrix [outputs, inputs]."""
        return Int4Weight.of_rows(*in_pieces(matrix, self._quantize_rows))

    def encode_on(self, ops: Any, matrix: Array) -> Int4Weight:
        """In groups, with or without zero points (kernels/encoding/int4.py)."""
        from minllm.kernels.encoding.int4 import encode_int4

        return Int4Weight(*encode_int4(matrix, ops.empty, self.group_size, self.has_zeros, ops.stream))

    def _quantize_rows(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        from minllm.kernels.quantization.reference import pack_nibbles  # imported here so that a plan loads no kernels

        groups = rows.astype(np.float32).reshape(len(rows), -1, self.group_size)
        if self.has_zeros:
            low, high = groups.min(axis=2, initial=0), groups.max(axis=2, initial=0)
            scales = (high - low) * np.float32(1 / LARGEST_CODE)
        else:
            scales = np.abs(groups).max(axis=2) * np.float32(1 / (LARGEST_CODE - MIDDLE))
        with np.errstate(over="ignore", invalid="ignore"):  # check_scales refuses infinity and NaN
            scales = scales.astype(np.float16)
            wide = scales.astype(np.float32)
            inverse = np.divide(np.float32(1), wide, out=np.zeros_like(wide), where=wide > 0)
            zeros = np.clip(np.rint(-low * inverse), 0, LARGEST_CODE) if self.has_zeros else np.full_like(wide, MIDDLE)
            codes = np.clip(np.rint(groups * inverse[..., None]) + zeros[..., None], 0, LARGEST_CODE).astype(np.uint8)
            packed = pack_nibbles(codes.reshape(rows.shape))
            return (packed, scales, zeros.astype(np.uint8)) if self.has_zeros else (packed, scales)

    def dequantize(self, weight: Int4Weight) -> np.ndarray:
        """(code - zero) * scale, or code * scale + minimum; float32 [outputs, inputs]."""
        from minllm.kernels.quantization.reference import unpack_nibbles

        codes = unpack_nibbles(weight.codes).astype(np.float32).reshape(*weight.scales.T.shape, -1)
        scales = weight.scales.T.astype(np.float32)[..., None]
        if weight.minimums is not None:
            return (codes * scales + weight.minimums.T.astype(np.float32)[..., None]).reshape(len(codes), -1)
        zeros = MIDDLE if weight.zeros is None else weight.zeros.T.astype(np.float32)[..., None]
        return ((codes - zeros) * scales).reshape(len(codes), -1)

    def without_contents(self, ops: Allocator, outputs: int, inputs: int) -> Int4Weight:
        """A weight of this shape with unspecified contents."""
        groups = (inputs // (self.group_size or inputs), outputs)
        zeros = ops.empty(groups, np.uint8) if self.has_zeros else None
        minimums = ops.empty(groups, self.scale_dtype) if self.has_minimums else None
        return Int4Weight(ops.empty((outputs, inputs // 2), np.uint8), ops.empty(groups, self.scale_dtype), zeros, minimums)

    @property
    def kernels(self) -> LinearKernels:
        """The kernels of kernels/matmul/quantized."""
        from minllm.weights.quantized_kernels import INT4  # imported here so that a plan loads no kernels

        return INT4
