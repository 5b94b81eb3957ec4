"""Weights in the dtype of the activations: 4 bytes per number in float32, 2 in float16 and bfloat16.

NumPy multiplies by float32 copies of the rounded numbers (ops/numpy_ops.py), so on a CPU each number takes 4 bytes.
"""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from minllm.weights.format import LinearKernels, WeightFormat
from minllm.weights.shard import Shard
from minllm.weights.stored import Projection, StoredWeights


@dataclass(frozen=True)
class PlainFormat(WeightFormat):
    """float32, float16 or bfloat16. A weight is one array [outputs, inputs]; on the host, one per module."""

    excluded: tuple[str, ...] = ()

    own_stage = "matmul"
    is_plain = has_experts = True
    is_option = False  # LLM(dtype=) selects it instead

    def load(self, projections: tuple[Projection, ...], checkpoint: StoredWeights, shard: Shard) -> list[np.ndarray]:
        """The modules' matrices as stored; `place` rounds and stacks them."""
        return self.matrices(projections, checkpoint, shard)

    def place(self, ops: Any, weight: list[np.ndarray]) -> Any:
        """The matrices stacked into one weight of the machine `ops`, rounded to its dtype."""
        return ops.stacked_weight(weight)

    def without_contents(self, ops: Any, outputs: int, inputs: int) -> Any:
        """An array of this shape with unspecified contents."""
        return ops.empty((outputs, inputs), ops.dtype)

    def dequantize(self, weight: np.ndarray) -> np.ndarray:
        """The matrix itself."""
        return weight

    @functools.cached_property
    def kernels(self) -> LinearKernels:
        """The kernels of kernels/matmul."""
        from minllm.weights.plain_kernels import KERNELS  # imported here so that a plan loads no kernels

        return KERNELS
