"""Loads the parameters of a model onto the device that computes with them.

Loading has two steps. The first compares only the headers with the configuration: every tensor that the model needs must be present with
the right shape, and there must be no tensor that the model would not use. The second reads the tensors, one parameter at a time, so that
host memory never holds more than one.
"""

import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from minllm.errors import CheckpointError
from minllm.models.config import ModelConfig
from minllm.models.finite import all_finite
from minllm.models.layout import Layout, ModelWeights, layout_of, leaves
from minllm.models.safetensors_file import NUMPY_DTYPES
from minllm.ops.batch import Array
from minllm.ops.protocol import Ops
from minllm.weights.format import WeightFormat, check_scales
from minllm.weights.formats import plain_format
from minllm.weights.linear import Linear
from minllm.weights.shard import Shard
from minllm.weights.stored import Projection, StoredLinear, StoredTensor, StoredWeights

Progress = Callable[[int, int], None]  # (bytes done, bytes in total)

# Tensors of old checkpoints that are recomputed: masks and rotary tables. A tied head repeats the embedding.
RECOMPUTED = re.compile(r"(rotary_emb\.inv_freq|attn\.bias|attn\.masked_bias)$")


_NOT_READ: Any = None  # in place of a Linear that is read by itself


def load_weights(
    ops: Ops, config: ModelConfig, checkpoint: StoredWeights, progress: Progress | None = None, weight_format: WeightFormat | None = None,
    make_reader: "Callable[..., WeightReader] | None" = None,
) -> ModelWeights:  # fmt: skip
    """Read a checkpoint into the arrays of `ops`; calls progress(done_bytes, total_bytes) after each parameter.

    weight_format: the format of the layers' matrices; None rounds them to the dtype of `ops`, like all other tensors. make_reader: makes
    the reader, WeightReader or one that reads a rank's part. Raises, before any weight is read, CheckpointError if the tensors contradict
    the configuration or a stored scale is NaN or infinite, and InvalidOptionError if a matrix does not fit its format.
    """
    layout = layout_of(config, is_prefixed(checkpoint), weight_format)
    layout.check_format()
    check_tensors(layout, checkpoint)
    check_stored_scales(layout, checkpoint)
    with ops.uploads():
        return (make_reader or WeightReader)(ops, checkpoint, layout, progress).read_model()


def is_prefixed(checkpoint: StoredWeights) -> bool:
    """Whether tensor names have the prefix of a language model, "model." or "transformer."."""
    return any(name.startswith(("model.", "transformer.")) for name in checkpoint.names())


def check_tensors(layout: Layout, checkpoint: StoredWeights) -> None:
    """Raises CheckpointError if a tensor is missing, has another shape, or is not used by the model."""
    config, expected = layout.config, layout.shapes()
    model = f"a {config.model_type} model of {config.num_hidden_layers} layers"
    missing = [name for name in expected if name not in checkpoint]
    if missing:
        raise CheckpointError(
            f"{checkpoint.directory} lacks {_some(checkpoint, missing)}, which {model} needs; "
            f"{checkpoint.described_by} and the weights do not belong together, or a file is incomplete."
        )
    for name, shape in expected.items():
        stored = checkpoint.entry(name).shape
        if stored != shape:
            raise CheckpointError(
                f"{checkpoint.directory}: tensor {checkpoint.stored_name(name)!r} has shape {list(stored)}, and {checkpoint.described_by} "
                f"makes it {list(shape)}; {checkpoint.described_by} and the weights do not belong together."
            )
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    unused = [name for name in checkpoint.names() if name not in expected and name not in tied and not RECOMPUTED.search(name)]
    if unused:
        raise CheckpointError(
            f"{checkpoint.directory} holds {_some(checkpoint, unused)}, which {model} "
            f"as {checkpoint.described_by} describes it does not have; leaving them out would change the result."
        )


def check_stored_scales(layout: Layout, checkpoint: Any) -> None:
    """Raises CheckpointError if a stored scale is NaN or infinite, even if such weights are allowed.

    Scales are the floating-point tensors beside a module's codes. A format that stores one tensor per module checks it while it loads.
    """
    for leaf in leaves(layout.model):
        if not isinstance(leaf, StoredLinear):
            continue
        for projection in leaf.projections:
            names = layout.format_of(leaf).tensors(projection)
            scales = [name for name in names if len(names) > 1 and checkpoint.entry(name).dtype in NUMPY_DTYPES]
            for name in scales:
                if not all_finite(checkpoint.array(name)):
                    raise CheckpointError(
                        f"{checkpoint.directory}: tensor {checkpoint.stored_name(name)!r} holds a scale that is NaN or infinite; copy it "
                        "again."
                    )


def _some(checkpoint: StoredWeights, names: list[str]) -> str:
    shown = ", ".join(repr(checkpoint.stored_name(name)) for name in names[:3])
    return f"tensor {shown}" if len(names) == 1 else f"{len(names)} tensors ({shown}{', ...' if len(names) > 3 else ''})"


class WeightReader:
    """Loads a layout, leaf by leaf, and counts the bytes of the tensors that it has read."""

    def __init__(self, ops: Ops, checkpoint: StoredWeights, layout: Layout, progress: Progress | None = None):
        self.ops, self.checkpoint, self.layout, self.progress = ops, checkpoint, layout, progress
        self.plain = plain_format(ops.dtype)
        self.unread = set(layout.shapes())
        self.total = sum(map(self._bytes, self.unread))
        self.done = 0

    def read_model(self) -> ModelWeights:
        """All weights, unsplit. A tied plain head shares the embedding's array."""
        stored, tied = self.layout.model, self.layout.config.tie_word_embeddings
        head: Any = stored.lm_head  # a StoredLinear, as all Linears of a layout
        outside = replace(stored, layers=[], lm_head=_NOT_READ)
        weights = self.read(outside)
        if tied and self.layout.format_of(head).is_plain:
            weights.lm_head = self.tied_head(weights.embedding)
        else:
            weights.lm_head = self.linear(head)
        weights.layers = self.read(stored.layers)
        return weights

    def tied_head(self, embedding: Array) -> Linear:
        """The head as a plain Linear on the embedding's array [vocab, hidden]."""
        return Linear(embedding, None, self.plain, self.layout.model.lm_head.shape)

    def read(self, value: object) -> Any:
        """A copy of a layout, or of a part of one, with every leaf loaded."""
        if isinstance(value, StoredTensor):
            return self.tensor(value)
        if isinstance(value, StoredLinear):
            return self.linear(value)
        if isinstance(value, list):
            return [self.read(one) for one in value]
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{field.name: self.read(getattr(value, field.name)) for field in fields(value)})
        return value

    def tensor(self, stored: StoredTensor) -> Array:
        """A tensor of the file as a plain array of `ops`."""
        host = self.checkpoint.tensor(stored.name)
        if stored.offset:
            host = host.astype(np.float32) + np.float32(stored.offset)
        weight = self._plain(host, stored.name)
        self._report([stored.name])
        return weight

    def linear(self, stored: StoredLinear, rank: int = 0, ranks: int = 1) -> Linear:
        """A Linear, or the part of it that GPU `rank` of `ranks` holds."""
        weight_format, shard = self.layout.format_of(stored), Shard(stored.axis, rank, ranks)
        tensors = [name for one in stored.projections for name in weight_format.tensors(one)]
        if weight_format.is_made_while_loading and not self.checkpoint.allow_nonfinite_weights:
            weight = self._encoded(weight_format, stored.projections, shard)
        else:
            host = weight_format.load(stored.projections, self.checkpoint, shard)
            if weight_format.is_plain:
                weight_format = self.plain
                for matrix, one in zip(host, stored.projections, strict=True):
                    self.check(matrix, f"{one.name}.weight")
            weight = weight_format.place(self.ops, host)
        self._report(tensors)
        bias = self._bias(stored, shard) if stored.biases and shard.adds_bias else None
        return Linear(weight, bias, weight_format, stored.shape_of(shard), shard)

    def _encoded(self, weight_format: WeightFormat, projections: tuple[Projection, ...], shard: Shard) -> Any:
        """Floating-point matrices in a quantised format, which the machine encodes."""
        parts = weight_format.matrices(projections, self.checkpoint, shard)
        for part, one in zip(parts, projections, strict=True):
            self.check_finite(part, f"{one.name}.weight")
        weight = self.ops.encoded(weight_format, parts)
        scales = [self.ops.to_host(one) for one in weight if one is not None and np.dtype(one.dtype).kind == "f"]
        check_scales(weight_format.name, [one.name for one in projections], scales)
        return weight

    def _bias(self, stored: StoredLinear, shard: Shard) -> Array:
        names = list(stored.biases)
        parts = [one.cut(self.checkpoint.tensor(name), shard, 0, None) for one, name in zip(stored.projections, names, strict=True)]
        bias = self._plain(parts[0] if len(parts) == 1 else np.concatenate(parts), names[0])
        self._report(names)
        return bias

    def check_finite(self, host: np.ndarray, name: str) -> None:
        """Raise CheckpointError for NaN and infinity; `checkpoint.tensor` has done so."""

    def check(self, host: np.ndarray, name: str) -> None:
        """Raise CheckpointError if numbers of a plain tensor lie beyond the range of the activations' dtype."""
        _check_range(host, self.ops.dtype, name)

    def _plain(self, host: np.ndarray, name: str) -> Array:
        self.check(host, name)
        return self.ops.weight(host)

    def _report(self, names: list[str]) -> None:
        """Add the bytes of the tensors that were not counted before, and call `progress`."""
        self.done += sum(map(self._bytes, self.unread.intersection(names)))
        self.unread.difference_update(names)
        if self.progress is not None:
            self.progress(self.done, self.total)

    def _bytes(self, name: str) -> int:
        entry = self.checkpoint.entry(name)
        return entry.end - entry.begin


def _check_range(host: np.ndarray, dtype: np.dtype, name: str) -> None:
    """Raises CheckpointError for values beyond 65504, the largest float16, which would silently become infinite."""
    if dtype == np.float16 and host.dtype != np.float16 and host.size:
        magnitude = np.abs(host.astype(np.float32, copy=False))
        largest = float(magnitude.max())
        if not np.isfinite(largest):  # NaN and infinity, if they were allowed, stay what they are
            largest = float(magnitude.max(where=np.isfinite(magnitude), initial=0))
        if largest > float(np.finfo(np.float16).max):
            raise CheckpointError(f"Tensor {name!r} reaches {largest:.3g}, beyond float16's 65504; load with dtype bfloat16 or float32.")
