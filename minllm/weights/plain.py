"""Weights as they are: every number in the dtype of the activations. float32 takes 4 bytes, float16 and bfloat16 take 2.

NumPy multiplies by float32 copies of the rounded numbers (ops/numpy_ops.py), so on a CPU each takes 4 bytes.
"""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from minllm.weights.format import LinearKernels, WeightFormat
from minllm.weights.shard import Shard
from minllm.weights.stored import Projection


@dataclass(frozen=True)
class PlainFormat(WeightFormat):
    """float32, float16 or bfloat16; a weight is one array [outputs, inputs], and its host arrays are the matrices of its modules."""

    excluded: tuple[str, ...] = ()

    own_stage = "matmul"
    is_plain = True
    is_option = False  # LLM(dtype=) chooses it

    def load(self, projections: tuple[Projection, ...], checkpoint: Any, shard: Shard) -> list[np.ndarray]:
        """The modules' matrices as they are; the machine rounds and stacks them."""
        return self.matrices(projections, checkpoint, shard)

    def place(self, ops: Any, weight: list[np.ndarray]) -> Any:
        """The stacked matrix as the machine keeps weights, rounded to its dtype."""
        return ops.stacked_weight(weight)

    def without_contents(self, ops: Any, outputs: int, inputs: int) -> Any:
        """An array of this shape."""
        return ops.empty((outputs, inputs), ops.dtype)

    def dequantize(self, weight: np.ndarray) -> np.ndarray:
        """The matrix itself."""
        return weight

    @functools.cached_property
    def kernels(self) -> LinearKernels:
        """The ladder of kernels/matmul."""
        from minllm.weights.plain_kernels import KERNELS  # here, so that a plan needs no kernels

        return KERNELS
