"""The terms of a part's costs: its matrices, its norms, and the bytes and operations of everything else.

costs/stages.py turns matrices and norms into stages, and adds embedding and head.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

from minllm.weights.format import WeightFormat


@dataclass(frozen=True)
class Stage:
    """One stage, over all layers. flops: those of matrix multiplications.

    other_flops: an estimate of all other operations.
    """

    name: str
    weight_bytes: int = 0
    kv_bytes: int = 0
    activation_bytes: int = 0
    flops: int = 0
    other_flops: int = 0

    @property
    def bytes(self) -> int:
        """All memory traffic, in bytes."""
        return self.weight_bytes + self.kv_bytes + self.activation_bytes

    @property
    def arithmetic_intensity(self) -> float:
        """Operations per byte moved."""
        return (self.flops + self.other_flops) / self.bytes


class Matrix(NamedTuple):
    """A linear layer that processes every token: the stage's name, its shape, and whether it has a bias."""

    name: str
    outputs: int
    inputs: int
    bias: bool = False

    @property
    def parameters(self) -> int:
        """Number of parameters of the matrix, without its bias."""
        return self.outputs * self.inputs


class Norm(NamedTuple):
    """The normalisation of the hidden state before a part.

    without_residual: number of layers without a residual to add there.
    """

    name: str
    without_residual: int = 0


@dataclass(frozen=True)
class Sizes:
    """The sizes of a step, and bytes per number: `item` for activations, embeddings, head, norms and biases."""

    tokens: int  # T
    rows: int  # R
    visible: int  # pairs of a query and a key that it sees, over all layers
    read: int  # tokens whose keys and values are read in the cache's format, over all layers
    item: int = 2
    matrix_item: float | Fraction = 2  # bytes per number in the layers' matrices
    kv_item: float = 2  # bytes per number in the KV cache
    exact: int = 0  # tokens of a residual window, read unquantised, over all layers
    weight_format: WeightFormat | None = None  # sets matrix_item for each matrix, with its share of the scales

    def of_matrix(self, matrix: Matrix) -> "Sizes":
        """These sizes with matrix_item set to the exact bytes per number of one matrix."""
        if self.weight_format is None:
            return self
        found = self.weight_format.matrix_bytes(matrix.outputs, matrix.inputs)
        return replace(self, matrix_item=Fraction(found, matrix.parameters))
