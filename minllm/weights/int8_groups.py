"""W8A16: int8 in groups of inputs that share a scale; activations stay in 16 bits.

    scale = max |w| / 127        code = round(w / scale)        w' = code * scale

max is that of a group of neighbouring inputs of one output. This format is only read from checkpoints (GGUF's Q8_0 has groups of 32).
Weights that are quantised while loading use int8.py, which takes fewer bytes and multiplies integers.

Source: ggml-common.h, block_q8_0.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from minllm.weights.format import Allocator, LinearKernels, WeightFormat


class Int8GroupWeight(NamedTuple):
    """An int8 matrix [outputs, inputs] with a scale per group."""

    codes: Any  # int8 [outputs, inputs]
    scales: Any  # float [groups, outputs]; why in this order: int4.py


@dataclass(frozen=True)
class Int8GroupFormat(WeightFormat):
    """The format of Int8GroupWeight: 1 byte per element and 2 bytes per group."""

    scale_dtype: np.dtype = np.dtype(np.float16)

    def dequantize(self, weight: Int8GroupWeight) -> np.ndarray:
        """code * scale, float32 [outputs, inputs]."""
        groups = weight.codes.astype(np.float32).reshape(*weight.scales.T.shape, -1)
        return (groups * weight.scales.T.astype(np.float32)[..., None]).reshape(weight.codes.shape)

    def without_contents(self, ops: Allocator, outputs: int, inputs: int) -> Int8GroupWeight:
        """A weight of this shape with unspecified contents."""
        groups = inputs // (self.group_size or inputs)
        return Int8GroupWeight(ops.empty((outputs, inputs), np.int8), ops.empty((groups, outputs), self.scale_dtype))

    @property
    def kernels(self) -> LinearKernels:
        """The kernels of kernels/matmul/quantized."""
        from minllm.weights.quantized_kernels import INT8_GROUPS  # imported here so that a plan loads no kernels

        return INT8_GROUPS
