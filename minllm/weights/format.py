"""The interface of a weight format: sizes, loading from a checkpoint, NumPy reference, GPU kernels.

Each Linear carries its format, as each cache carries its KvFormat (kernels/quantization/formats.py). Settings that differ between
checkpoints (group size, modules that stay plain) are fields of the instance. To add a format, write its layout, equations and decoders in a
file of kernels/quantization, its sizes as a subclass in quantized.py, and a line in formats.py. Loading, operations, costs, the memory
budget and `minllm plan` depend on this interface alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import DTypeLike

from minllm.errors import CheckpointError, InvalidOptionError
from minllm.runtime.array_protocol import Array
from minllm.weights.shard import Shard
from minllm.weights.stored import Projection, StoredWeights


class Allocator(Protocol):
    """A machine that allocates memory, such as the operations of ops/protocol.py."""

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """An array with unspecified contents."""
        ...


class StreamKernels(NamedTuple):
    """Fused GEMMs for decoding several sequences, from residual stream to residual stream (matmul/flat/fused.py)."""

    fits: Callable[[Any, Any], bool]  # (x, weight) -> whether these kernels support the arrays
    linear_add: Callable
    gated: Callable
    qkv_rope_append: Callable


class LinearKernels(NamedTuple):
    """The GPU kernels of a weight format. A launcher writes `out` on `stream`; `weight` is Linear.weight.

    Fusions are optional: if a field is None, the operations run one by one (ops/composed.py).
    """

    variants: Mapping[str, Callable]  # name -> launcher(x, weight, out, bias, stream)
    choose: Callable[[Any, Any], str]  # (x, weight) -> the variant for these arrays
    most_rows: Mapping[str, int] = {}  # variant -> the most rows of x that it supports, for variants with a limit
    activations: Mapping[str, Callable] = {}  # variant -> quantiser(x, empty, stream), for variants that multiply quantised x
    # variant -> launcher(x, norm, empty, epsilon, residual, stream) that quantises the RMS norm of x (+ residual) in one kernel
    normed_activations: Mapping[str, Callable] = {}
    gated_activations: Mapping[str, Callable] = {}  # variant -> launcher(gate_up, empty, stream) that quantises silu(gate) * up
    workspaces: Mapping[str, Callable] = {}  # variant -> (x, weight, empty) -> the `workspace` of its launcher
    # (variant, x, weight, out_dtype) -> launcher(x, weight, out, stream) of silu(gate) * up, or None
    gated: Callable[[str, Any, Any, np.dtype], Callable | None] = lambda variant, x, weight, out_dtype: None
    # For decoding one sequence: GEMVs that include the RMS norm before them and the residual addition after them.
    fits_normed: Callable[[Any, Any], bool] = lambda x, weight: True  # whether the three below support the arrays
    normed_linear: Callable | None = None  # (x, weight, out, bias, stream, norm=, epsilon=, residual=)
    normed_gated: Callable | None = None  # (x, weight, out, stream, norm=, epsilon=)
    normed_qkv: Callable | None = None  # called like gemv_qkv_rope_append (matmul/gemv/gemv_qkv.py)
    stream: StreamKernels | None = None


@dataclass(frozen=True)
class WeightFormat:
    """How matrices [outputs, inputs] are stored. `weight`: an array, or a NamedTuple; on host or device."""

    name: str
    matrix_itemsize: float  # bytes per matrix element, without scales
    rates: tuple[str, ...] = ()  # fields of machine.hardware.Gpu: the tensor-core rates that apply, best first
    itemsize: int = 2  # bytes per element of embeddings, head, norms, biases and activations in a plan
    excluded: tuple[str, ...] = ("lm_head",)  # modules that stay plain, by full name or last part of it
    row_bytes: int = 0  # bytes stored once per output
    group_size: int = 0  # neighbouring inputs that share a scale; 0: no groups
    group_bytes: int = 0  # bytes stored once per group
    since: tuple[int, int] | None = None  # the first compute capability with the instructions; None: all have them

    own_stage: ClassVar[str | None] = None  # the stage of ops/own_kernels.py that may replace its matmul
    is_plain = False  # not quantised: elements have the dtype of the activations
    is_option = True  # LLM(quantization=name) accepts it
    encodes_on_gpu = False  # `encode_on` exists

    def covers(self, name: str) -> bool:
        """Whether the matrix of the module `name` is held in this format."""
        return not any(name == one or name.endswith(f".{one}") for one in self.excluded)

    def for_inputs(self, inputs: int) -> "WeightFormat":
        """The format of a stored module with this number of inputs: this one, or one that dequantises it while it loads."""
        return self

    def of(self, modules: list[str]) -> "WeightFormat | None":
        """The format of modules stacked in one Linear: this one if it covers all of them, else None for plain."""
        return self if all(map(self.covers, modules)) else None

    def matrix_bytes(self, outputs: int, inputs: int) -> int:
        """Bytes of a matrix in memory, including scales and zero points."""
        groups = outputs * inputs // self.group_size if self.group_size else 0
        return int(outputs * inputs * self.matrix_itemsize) + outputs * self.row_bytes + groups * self.group_bytes

    def workspace_bytes(self, rows: int, outputs: int, inputs: int, itemsize: int) -> int:
        """Upper bound on bytes of workspace for `rows` rows of x (default: the widened matrix); itemsize: bytes per element of x."""
        return 0 if self.is_plain else outputs * inputs * itemsize

    def check_inputs(self, name: str, inputs: int) -> None:
        """Raises InvalidOptionError if the inputs of the module `name`, or its shard, are not whole groups."""
        if self.group_size and inputs % self.group_size:
            raise InvalidOptionError(
                f"A matrix in {self.name} has groups of {self.group_size} inputs, and {name} has {inputs}: take a format with smaller "
                "groups, or one without, such as int8."
            )

    def tensors(self, projection: Projection) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the tensors that hold a module's matrix in the file; by default one plain matrix."""
        return {f"{projection.name}.weight": projection.stored_shape}

    def load(self, projections: tuple[Projection, ...], checkpoint: Any, shard: Shard) -> Any:
        """The shard of the stacked modules' weight, as host arrays. Raises CheckpointError if a scale is not finite.

        checkpoint: has tensor(name) for floating-point numbers and array(name) for codes (models/checkpoint.py). A format that checkpoints
        store overrides this method; a format made while loading overrides only `encode`.
        """
        parts = self.matrices(projections, checkpoint, shard)
        weight = self.encode(parts[0] if len(parts) == 1 else np.concatenate(parts))
        check_scales(self.name, [one.name for one in projections], weight)
        return weight

    @property
    def is_made_while_loading(self) -> bool:
        """Whether `load` encodes floating-point matrices; a format that files store has its own."""
        return type(self).load is WeightFormat.load

    def matrices(self, projections: tuple[Projection, ...], checkpoint: StoredWeights, shard: Shard) -> list[np.ndarray]:
        """The shard of each module's floating-point matrix [outputs, inputs]: views of the checkpoint if possible."""
        parts = []
        for one in projections:
            matrix = checkpoint.tensor(f"{one.name}.weight")
            parts.append(one.cut(matrix.T if one.transposed else matrix, shard))
        return parts

    @property
    def has_experts(self) -> bool:
        """Whether kernels/experts multiplies by it."""
        return False

    def encode(self, matrix: np.ndarray) -> Any:
        """Quantise a floating-point matrix [outputs, inputs] to host arrays: one array or a NamedTuple."""
        raise NotImplementedError(f"{self.name} is not made of plain matrices")

    def encode_on(self, ops: Any, matrix: Array) -> Any:
        """`encode` of a matrix on the GPU of `ops`, float32, float16 or bfloat16 without NaN: the same bits, in arrays of the machine."""
        raise NotImplementedError(f"{self.name} has no kernels that encode it")

    def place(self, ops: Any, weight: Any) -> Any:
        """The weight with its host arrays converted to arrays of the machine `ops`."""
        if isinstance(weight, np.ndarray):
            return ops.array(weight)
        return type(weight)(*(None if one is None else ops.array(one) for one in weight))

    def without_contents(self, ops: Allocator, outputs: int, inputs: int) -> Any:
        """A weight of this shape with unspecified contents, in arrays of the machine `ops`, for a dry run."""
        raise NotImplementedError(f"{self.name} has no kernels that a dry run could find")

    def dequantize(self, weight: Any) -> np.ndarray:
        """The float32 matrix [outputs, inputs] that a weight's host arrays represent."""
        raise NotImplementedError(f"{self.name} has no reference")

    def linear(self, x: np.ndarray, weight: Any, bias: np.ndarray | None = None, out_dtype: DTypeLike | None = None) -> np.ndarray:
        """The NumPy reference: x @ weight.T + bias, summed in float32, rounded to `out_dtype`, by default x's dtype."""
        from minllm.kernels.matmul.reference import matmul_reference  # imported here so that a plan loads no kernels

        return matmul_reference(x, self.dequantize(weight), bias, out_dtype)

    @property
    def kernels(self) -> LinearKernels:
        """The GPU kernels of this format."""
        raise InvalidOptionError(f'quantization={self.name!r} has no kernels for a GPU: take device="cpu".')


def check_scales(format_name: str, modules: list[str], weight: Any) -> None:
    """Raises CheckpointError if a scale of a weight's host arrays is NaN or infinite."""
    arrays = [weight] if isinstance(weight, np.ndarray) else [one for one in weight if one is not None]
    if not all(np.isfinite(one).all() for one in arrays if one.dtype.kind == "f"):
        raise CheckpointError(
            f"The weights of {', '.join(modules)} give {format_name} a scale that is NaN or infinite: they hold such numbers, or "
            "larger ones than its scales reach. Load them with quantization=None."
        )
