"""Reads the tensors of a module's quantised matrix, and stacks several modules into one weight; int4 as its packers store it."""

from typing import Any, NamedTuple

import numpy as np

from minllm.errors import CheckpointError
from minllm.kernels.quantization.int4 import Int4Weight
from minllm.kernels.quantization.reference import pack_nibbles
from minllm.weights.format import WeightFormat
from minllm.weights.quantized import Int4Format
from minllm.weights.shard import Shard
from minllm.weights.stored import Projection, StoredWeights

Parts = tuple[np.ndarray, np.ndarray, np.ndarray | None]


class ModuleTensors(NamedTuple):
    """The tensors of one module of a checkpoint, named MODULE.SUFFIX."""

    checkpoint: Any  # StoredWeights with arrays of codes
    module: str

    def codes(self, suffix: str, *dtypes: Any) -> np.ndarray:
        """A tensor of codes. Raises CheckpointError if its dtype is not one of `dtypes`."""
        name = f"{self.module}.{suffix}"
        found = self.checkpoint.array(name)
        if found.dtype not in dtypes:
            allowed = " or ".join(np.dtype(one).name for one in dtypes)
            raise CheckpointError(f"{self.checkpoint.directory}: tensor {name!r} is {found.dtype.name}; its format stores {allowed}.")
        return found

    def words(self, suffix: str, axes: int) -> np.ndarray:
        """A tensor of int32 words, for use before shapes are checked.

        Raises CheckpointError unless it has `axes` axes and is not empty.
        """
        found = self.codes(suffix, np.int32)
        if found.ndim != axes or not found.size:
            name = self.checkpoint.stored_name(f"{self.module}.{suffix}")
            raise CheckpointError(
                f"{self.checkpoint.directory}: tensor {name!r} has shape {list(found.shape)}; its format stores {axes} axes, none of them "
                "empty: copy the file again."
            )
        return found

    def scales(self, suffix: str) -> np.ndarray:
        """A tensor of floating-point scales. Raises CheckpointError for NaN or infinity."""
        name = f"{self.module}.{suffix}"
        found = self.checkpoint.tensor(name)
        self.check_finite(suffix, found)  # even with allow_nonfinite_weights, which makes checkpoint.tensor accept them
        return found

    def check_finite(self, suffix: str, *scales: np.ndarray) -> None:
        """Raises CheckpointError, naming the tensor MODULE.SUFFIX, if a scale is NaN or infinite."""
        if not all(np.isfinite(one).all() for one in scales):
            name = self.checkpoint.stored_name(f"{self.module}.{suffix}")
            raise CheckpointError(f"{self.checkpoint.directory}: tensor {name!r} holds a scale that is NaN or infinite; copy it again.")


def tensors_of(projection: Projection, **shapes: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """{name: shape} of a module's tensors, from {suffix: shape}."""
    return {f"{projection.name}.{suffix}": shape for suffix, shape in shapes.items()}


def stacked(parts: list[tuple]) -> tuple:
    """Stack tuples of arrays of several modules along their first axis, outputs; an item is None in all of them or in none."""
    if len(parts) == 1:
        return parts[0]
    return tuple(None if one[0] is None else np.concatenate(one) for one in zip(*parts, strict=True))


class StoredFormat(WeightFormat):
    """Mixin for formats that are read from checkpoints."""

    is_option = False

    def check_inputs(self, name: str, inputs: int) -> None:
        """Raises CheckpointError if a module's inputs do not divide into whole groups."""
        if self.group_size and inputs % self.group_size:
            raise CheckpointError(
                f"{name} has {inputs} inputs, which groups of {self.group_size} do not divide; config.json and the weights do not belong "
                "together."
            )


class StoredInt4(StoredFormat, Int4Format):
    """Mixin for int4 that a file stores as codes, scales and zero points per group."""

    def parts(self, projection: Projection, checkpoint: StoredWeights) -> Parts:
        """(codes [outputs, inputs], one per byte; scales [outputs, groups]; zeros like scales, or None) of a module."""
        raise NotImplementedError

    def load(self, projections: tuple[Projection, ...], checkpoint: StoredWeights, shard: Shard) -> Int4Weight:
        """The shard of the stacked modules' weight, as host arrays."""
        found = []
        for one in projections:
            codes, *by_group = self.parts(one, checkpoint)
            groups = (1, self.group_size or one.inputs)
            cut = (None if array is None else one.cut(array, shard, block=groups) for array in by_group)
            found.append((pack_nibbles(np.ascontiguousarray(one.cut(codes, shard))), *cut))
        return Int4Weight.of_rows(*stacked(found))
