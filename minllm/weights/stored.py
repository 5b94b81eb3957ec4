"""The linear layers of a checkpoint: which modules a Linear stacks, and how tensors are split in shards.

Query, key and value projections are stacked into one Linear, gate and up into another, so that a layer reads its input once. Each stacked
projection is split separately, by heads or rows, so that a rank holds matching heads of q, k and v.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from minllm.errors import InvalidOptionError
from minllm.weights.shard import INPUTS, OUTPUTS, Shard


@dataclass(frozen=True)
class Projection:
    """One linear module of a checkpoint. WeightFormat.tensors names the tensors that store its matrix."""

    name: str  # "model.layers.0.self_attn.q_proj"
    outputs: int
    inputs: int
    bias: bool = False
    transposed: bool = False  # the matrix is stored [inputs, outputs], as GPT-2's Conv1D does
    units: tuple[int, ...] = ()  # heads in each section of the outputs, which stay whole; (): a split may separate any rows

    @property
    def sections(self) -> tuple[int, ...]:
        """Number of indivisible units of outputs (heads, or single rows) in each section."""
        return self.units or (self.outputs,)

    @property
    def stored_shape(self) -> tuple[int, int]:
        """The shape of the matrix in the file if it is plain."""
        return (self.inputs, self.outputs) if self.transposed else (self.outputs, self.inputs)

    def cut(
        self, tensor: np.ndarray, shard: Shard, outputs_axis: int | None = 0, inputs_axis: int | None = 1, block: tuple[int, int] = (1, 1)
    ) -> np.ndarray:
        """The shard's part of a tensor of this module; a view if it is one slice.

        outputs_axis, inputs_axis: the tensor's axes that run along outputs and inputs; None: the tensor has no such axis. block: outputs
        and inputs per element of the tensor: (1, 1) for the matrix itself, (1, 128) for scales of groups of 128 inputs, (8, 1) for words
        of eight outputs. Raises InvalidOptionError if the split would divide a block.
        """
        if shard.ranks == 1:
            return tensor
        axis, size = ((outputs_axis, block[0]), (inputs_axis, block[1]))[shard.axis]
        if axis is None:
            return tensor
        slices = [self._elements(rows, size) for rows in self._cut_rows(shard)]
        parts = [tensor[(slice(None),) * axis + (one,)] for one in slices]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis)

    def _cut_rows(self, shard: Shard) -> Iterator[slice]:
        """The slices of the shard's outputs, one per section, or the slice of its inputs."""
        if shard.axis == INPUTS:
            part = shard.part(self.inputs, INPUTS)
            yield slice(part.start, part.stop)
            return
        rows, first = self.outputs // sum(self.sections), 0  # rows per unit
        for count in self.sections:
            part = shard.part(count, OUTPUTS)
            yield slice((first + part.start) * rows, (first + part.stop) * rows)
            first += count

    def _elements(self, rows: slice, size: int) -> slice:
        """The slice of elements that hold a slice of outputs or inputs, `size` of them per element."""
        if rows.start % size or rows.stop % size:
            raise InvalidOptionError(f"{self.name} has blocks of {size}, and a cut at {rows.start} or {rows.stop} would divide one.")
        return slice(rows.start // size, rows.stop // size)


@dataclass(frozen=True)
class StoredTensor:
    """An array of the forward pass that is one tensor of the file, such as a norm or an embedding."""

    name: str
    shape: tuple[int, ...]
    offset: float = 0.0  # added to the numbers of the file


@dataclass(frozen=True)
class StoredLinear:
    """A Linear before loading: projections stacked along outputs. axis: what tensor parallelism splits."""

    projections: tuple[Projection, ...]
    axis: int = OUTPUTS

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs) of the whole stacked matrix."""
        return sum(one.outputs for one in self.projections), self.projections[0].inputs

    def shape_of(self, shard: Shard) -> tuple[int, int]:
        """(outputs, inputs) of the part that `shard` holds."""
        outputs = 0
        for one in self.projections:
            units = sum(len(shard.part(count, OUTPUTS)) for count in one.sections)
            outputs += units * (one.outputs // sum(one.sections))
        return outputs, len(shard.part(self.shape[1], INPUTS))

    @property
    def biases(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the biases, which no format quantises."""
        return {f"{one.name}.bias": (one.outputs,) for one in self.projections if one.bias}


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a header; `begin` and `end` are byte offsets from the start of the data."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class StoredWeights(Protocol):
    """The tensors of a model by Hugging Face's names, from a directory, a GGUF file, or drawn at random."""

    @property
    def directory(self) -> Path | str:
        """The source of the tensors, for error messages."""

    @property
    def described_by(self) -> str:
        """The file that gives the tensors' number and shapes, for error messages."""

    @property
    def allow_nonfinite_weights(self) -> bool:
        """Whether `tensor` returns NaN and infinity."""

    def __contains__(self, name: str) -> bool:
        """Whether there is a tensor of this name."""

    def names(self) -> list[str]:
        """The names of all tensors."""

    def stored_name(self, name: str) -> str:
        """The name of a tensor in the file itself."""

    def entry(self, name: str) -> TensorEntry:
        """Dtype, shape and bytes of a tensor, known before it is read."""

    def tensor(self, name: str) -> np.ndarray:
        """The values of a tensor. Raises CheckpointError for NaN or infinity."""

    def dtype(self, quantized: bool = False) -> np.dtype:
        """The dtype to compute in; quantized: tensors of codes are ignored."""


def stacked_linear(projections: tuple[Projection, ...], axis: int = OUTPUTS) -> Any:
    """A StoredLinear. It stands in a layout where a model has the Linear that is read from it, hence Any."""
    return StoredLinear(projections, axis)


def stored_linear(prefix: str, name: str, outputs: int, inputs: int, bias: bool = False, **options) -> Any:
    """A StoredLinear of one module. options: `axis`, and the fields of Projection."""
    axis = options.pop("axis", OUTPUTS)
    return StoredLinear((Projection(prefix + name, outputs, inputs, bias, **options),), axis)
