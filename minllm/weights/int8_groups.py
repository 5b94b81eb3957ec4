"""int8 in groups of inputs that share a scale, multiplied by activations in 16 bits: W8A16.

    scale = max |w| / 127        code = round(w / scale)        w' = code * scale

max is that of a group of neighbouring inputs of one output. Only checkpoints store it (GGUF's Q8_0 in groups of 32): of what is quantised
while it loads, int8.py takes fewer bytes and multiplies integers.

Source: ggml-common.h, block_q8_0.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from minllm.weights.format import LinearKernels, WeightFormat


class Int8GroupWeight(NamedTuple):
    """A weight [outputs, inputs]."""

    codes: Any  # int8 [outputs, inputs]
    scales: Any  # float [outputs, groups]


@dataclass(frozen=True)
class Int8GroupFormat(WeightFormat):
    """A byte per number and 2 bytes per group."""

    scale_dtype: np.dtype = np.dtype(np.float16)

    def dequantize(self, weight: Int8GroupWeight) -> np.ndarray:
        """code * scale."""
        groups = weight.codes.astype(np.float32).reshape(*weight.scales.shape, -1)
        return (groups * weight.scales.astype(np.float32)[..., None]).reshape(weight.codes.shape)

    def without_contents(self, ops: Any, outputs: int, inputs: int) -> Int8GroupWeight:
        """The arrays of a weight of this shape."""
        groups = inputs // (self.group_size or inputs)
        return Int8GroupWeight(ops.empty((outputs, inputs), np.int8), ops.empty((outputs, groups), self.scale_dtype))

    def workspace_bytes(self, rows: int, outputs: int, inputs: int, itemsize: int) -> int:
        """The widened matrix."""
        return outputs * inputs * itemsize

    @property
    def kernels(self) -> LinearKernels:
        """kernels/matmul/quantized."""
        from minllm.weights.quantized_kernels import INT8_GROUPS  # here, so that a plan needs no kernels

        return INT8_GROUPS
