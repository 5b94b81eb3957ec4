"""The interface of a weight format: bytes, the way from a checkpoint to arrays, the NumPy linear, and the kernels.

A format is a value that travels with each Linear, as KvFormat does with a cache (kernels/quantization/formats.py). What a checkpoint
decides for itself (group size, modules left as they are) are fields of the instance. To add one: a file with a subclass, and its line in
formats.py. Loading, operations, costs, the memory budget and `minllm plan` ask the format and nothing else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from minllm.errors import CheckpointError, InvalidOptionError
from minllm.weights.shard import Shard
from minllm.weights.stored import Projection


class StreamKernels(NamedTuple):
    """The products of a decode step of several sequences, from residual stream to residual stream (matmul/flat/fused.py)."""

    fits: Callable[[Any, Any], bool]  # (x, weight)
    linear_add: Callable
    gated: Callable
    qkv_rope_append: Callable


class LinearKernels(NamedTuple):
    """How a GPU multiplies by weights of a format. A launcher writes `out` on `stream`; `weight` is Linear.weight.

    Fusions are optional: for None the operations are composed (ops/composed.py).
    """

    variants: Mapping[str, Callable]  # name -> launcher(x, weight, out, bias, stream)
    choose: Callable[[Any, Any], str]  # (x, weight) -> the variant for these arrays
    most_rows: Mapping[str, int] = {}  # the most rows of x that a variant takes, if it is limited
    activations: Mapping[str, Callable] = {}  # variant -> quantiser(x, empty, stream) of x, for variants that multiply quantised rows
    # variant -> (x, norm, empty, epsilon, residual, stream), which quantises the RMS norm of x (+ residual) in one kernel
    normed_activations: Mapping[str, Callable] = {}
    gated_activations: Mapping[str, Callable] = {}  # variant -> (gate_up, empty, stream), which quantises silu(gate) * up in one kernel
    workspaces: Mapping[str, Callable] = {}  # variant -> (x, weight, empty), which makes its launcher's `workspace`
    gated: Callable | None = None  # (variant, x, weight, out_dtype) -> launcher(x, weight, out, stream) of silu(gate) * up, or None
    # For a few rows of x, with the RMS norm in front and the residual behind: decoding one sequence.
    fits_normed: Callable[[Any, Any], bool] = lambda x, weight: True  # whether these three take the arrays
    normed_linear: Callable | None = None  # (x, weight, out, bias, stream, norm=, epsilon=, residual=)
    normed_gated: Callable | None = None  # (x, weight, out, stream, norm=, epsilon=)
    normed_qkv: Callable | None = None  # called like gemv_qkv_rope_append (matmul/gemv/gemv_qkv.py)
    stream: StreamKernels | None = None


@dataclass(frozen=True)
class WeightFormat:
    """A format of the matrices [outputs, inputs] of linear layers. `weight` below: a host or device array, or a NamedTuple of arrays."""

    name: str
    matrix_itemsize: float  # bytes per number of a matrix, without scales
    rates: tuple[str, ...] = ()  # fields of machine.hardware.Gpu: the rates of tensor cores for it, best first
    itemsize: int = 2  # bytes per number of all else (embeddings, head, norms, biases, activations) in a plan
    excluded: tuple[str, ...] = ("lm_head",)  # modules that stay plain: full names, or their last parts
    row_bytes: int = 0  # bytes of what is stored once per output
    group_size: int = 0  # neighbouring inputs that share a scale; 0: there are no groups
    group_bytes: int = 0  # bytes of what is stored once per group
    since: tuple[int, int] | None = None  # the first compute capability whose GPUs have the instructions; None for all

    own_stage: ClassVar[str | None] = None  # the stage of ops/own_kernels.py whose kernel may multiply by it
    is_plain = False  # numbers as they are, in the dtype of the activations
    is_option = True  # LLM(quantization=name) loads it

    def covers(self, name: str) -> bool:
        """Whether a module's matrix is held in this format."""
        return not any(name == one or name.endswith(f".{one}") for one in self.excluded)

    def of(self, modules: list[str]) -> "WeightFormat | None":
        """The format of modules that are stacked in one Linear: this one if it covers all of them; None if they are plain."""
        return self if all(map(self.covers, modules)) else None

    def matrix_bytes(self, outputs: int, inputs: int) -> int:
        """Bytes of a matrix in memory, scales and zeros included."""
        groups = outputs * inputs // self.group_size if self.group_size else 0
        return int(outputs * inputs * self.matrix_itemsize) + outputs * self.row_bytes + groups * self.group_bytes

    def workspace_bytes(self, rows: int, outputs: int, inputs: int, itemsize: int) -> int:
        """The most bytes that a GPU needs beside x, weight and out to multiply this number of rows, whose numbers have `itemsize` bytes."""
        return 0

    def check_inputs(self, name: str, inputs: int) -> None:
        """Raises InvalidOptionError if the matrix of a module, or its shard, cannot be held because of its number of inputs."""
        if self.group_size and inputs % self.group_size:
            raise InvalidOptionError(
                f"A matrix in {self.name} has groups of {self.group_size} inputs, and {name} has {inputs}: take a format with smaller "
                "groups, or one without, such as int8."
            )

    def tensors(self, projection: Projection) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the tensors that hold a module's matrix in the file; a plain matrix unless the format overrides it."""
        return {f"{projection.name}.weight": projection.stored_shape}

    def load(self, projections: tuple[Projection, ...], checkpoint: Any, shard: Shard) -> Any:
        """The shard of the stacked modules' weight, as host arrays.

        checkpoint: tensor(name) for floating-point numbers, array(name) for codes (models/checkpoint.py). A format that checkpoints store
        overrides this method; one that is made while loading overrides `encode` alone.
        """
        parts = self.matrices(projections, checkpoint, shard)
        weight = self.encode(parts[0] if len(parts) == 1 else np.concatenate(parts))
        check_scales(self.name, [one.name for one in projections], weight)
        return weight

    def matrices(self, projections: tuple[Projection, ...], checkpoint: Any, shard: Shard) -> list[np.ndarray]:
        """The shard of each module's matrix [outputs, inputs] of floating-point numbers, views of the checkpoint."""
        parts = []
        for one in projections:
            matrix = checkpoint.tensor(f"{one.name}.weight")
            parts.append(one.cut(matrix.T if one.transposed else matrix, shard))
        return parts

    def encode(self, matrix: np.ndarray) -> Any:
        """The weight that a floating-point matrix [outputs, inputs] becomes, as host arrays: a NamedTuple of them, or one."""
        raise NotImplementedError(f"{self.name} is not made of plain matrices")

    def place(self, ops: Any, weight: Any) -> Any:
        """The weight's host arrays as arrays of the machine `ops`."""
        if isinstance(weight, np.ndarray):
            return ops.array(weight)
        return type(weight)(*(None if one is None else ops.array(one) for one in weight))

    def without_contents(self, ops: Any, outputs: int, inputs: int) -> Any:
        """A weight of this shape with unspecified contents, as arrays of the machine `ops`, for a dry run."""
        raise NotImplementedError(f"{self.name} has no kernels that a dry run could find")

    def dequantize(self, weight: Any) -> np.ndarray:
        """The matrix [outputs, inputs] that a weight's host arrays stand for, float32."""
        raise NotImplementedError(f"{self.name} has no reference")

    def linear(self, x: np.ndarray, weight: Any, bias: np.ndarray | None = None, out_dtype: Any = None) -> np.ndarray:
        """The reference: x @ weight.T + bias, summed in float32, rounded to `out_dtype` or else to x's dtype."""
        from minllm.kernels.matmul.reference import matmul_reference  # here, so that a plan needs no kernels

        return matmul_reference(x, self.dequantize(weight), bias, out_dtype)

    @property
    def kernels(self) -> LinearKernels | None:
        """How a GPU multiplies by it; None if there are no kernels."""
        return None


def check_scales(format_name: str, modules: list[str], weight: Any) -> None:
    """Raises CheckpointError if a scale of a weight's host arrays is NaN or infinite."""
    arrays = [weight] if isinstance(weight, np.ndarray) else [one for one in weight if one is not None]
    if not all(np.isfinite(one).all() for one in arrays if one.dtype.kind == "f"):
        raise CheckpointError(
            f"The weights of {', '.join(modules)} give {format_name} a scale that is NaN or infinite: they hold such numbers, or "
            "larger ones than its scales reach. Load them with quantization=None."
        )
