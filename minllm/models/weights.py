"""The parameters of a model, on the machine that multiplies by them.

Loading has two halves. First the headers alone are compared with the configuration: every tensor that the model needs must be there in its
shape, and none that it would not use. Only then is anything read, one parameter at a time, so that host memory never holds more than one.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from minllm.errors import CheckpointError
from minllm.models.checkpoint import Checkpoint
from minllm.models.config import ModelConfig
from minllm.models.layout import Layout, Parameter, layout_of
from minllm.ops.protocol import Array, AttentionConfig, NormWeights, Ops

Progress = Callable[[int, int], None]  # (bytes done, bytes in all)

# Tensors that old checkpoints carry and that are recomputed: masks and rotation tables. A tied head repeats the embedding.
RECOMPUTED = re.compile(r"(rotary_emb\.inv_freq|attn\.bias|attn\.masked_bias)$")


@dataclass
class LayerWeights:
    """One layer. What a family does not have is None."""

    attention: AttentionConfig
    attention_norm: NormWeights
    qkv: Array  # [(heads + 2 * kv_heads) * head_dim, hidden]
    attention_output: Array  # [hidden, heads * head_dim]
    mlp_norm: NormWeights
    down: Array  # [hidden, intermediate]
    gate_up: Array | None = None  # [2 * intermediate, hidden], of a gated feed-forward
    up: Array | None = None  # [intermediate, hidden], of one without a gate
    qkv_bias: Array | None = None
    attention_output_bias: Array | None = None
    up_bias: Array | None = None
    down_bias: Array | None = None
    q_norm: Array | None = None  # [head_dim]
    k_norm: Array | None = None  # [head_dim]


@dataclass
class ModelWeights:
    """All layers, and what stands before and after them. A tied head is the embedding itself, not a copy."""

    embedding: Array  # [vocab, hidden]
    layers: list[LayerWeights]
    final_norm: NormWeights
    lm_head: Array  # [vocab, hidden]
    position_embedding: Array | None = None  # [max_position_embeddings, hidden]


def load_weights(ops: Ops, config: ModelConfig, checkpoint: Checkpoint, progress: Progress | None = None) -> ModelWeights:
    """Reads a checkpoint into the arrays of `ops`, rounded to its dtype. `progress(done_bytes, total_bytes)` after each parameter.

    Raises CheckpointError, before anything is read, where the tensors contradict the configuration.
    """
    layout = layout_of(config, prefixed=_is_prefixed(checkpoint))
    _check_tensors(config, layout, checkpoint)
    reader = _Reader(ops, checkpoint, layout, progress)
    outside = {field: reader.read(parameter) for field, parameter in layout.outside.items()}
    layers = []
    for index, parameters in enumerate(layout.layers):
        fields = {field: reader.read(parameter) for field, parameter in parameters.items()}
        for norm in ("attention_norm", "mlp_norm"):
            fields[norm] = _norm(config, fields, norm)
        layers.append(LayerWeights(attention=config.attention(index), **fields))
    outside["final_norm"] = _norm(config, outside, "final_norm")
    outside.setdefault("lm_head", outside["embedding"])
    return ModelWeights(layers=layers, **outside)


def _norm(config: ModelConfig, fields: dict[str, Array], name: str) -> NormWeights:
    return NormWeights(config.norm, fields.pop(name), fields.pop(f"{name}_bias", None), config.norm_epsilon)


def _is_prefixed(checkpoint: Checkpoint) -> bool:
    """Whether the decoder's tensors are named as part of a language model ("model.", "transformer."), or stand alone."""
    return any(name.startswith(("model.", "transformer.")) for name in checkpoint.names())


def _check_tensors(config: ModelConfig, layout: Layout, checkpoint: Checkpoint) -> None:
    """Every expected tensor is there in its shape, and no other that would have a say."""
    expected = layout.shapes()
    missing = [name for name in expected if name not in checkpoint]
    if missing:
        raise CheckpointError(
            f"{checkpoint.directory} lacks {_some(missing)}, which a {config.model_type} model of {config.num_hidden_layers} layers needs; "
            "config.json and the weights do not belong together, or a file is incomplete."
        )
    for name, shape in expected.items():
        stored = checkpoint.entry(name).shape
        if stored != shape:
            raise CheckpointError(
                f"{checkpoint.directory}: tensor {name!r} has shape {list(stored)}, and config.json makes it {list(shape)}; "
                "config.json and the weights do not belong together."
            )
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    unused = [name for name in checkpoint.names() if name not in expected and name not in tied and not RECOMPUTED.search(name)]
    if unused:
        raise CheckpointError(
            f"{checkpoint.directory} holds {_some(unused)}, which a {config.model_type} model of {config.num_hidden_layers} layers as "
            "config.json describes it does not have; leaving them out would change the result."
        )


def _some(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    return f"tensor {shown}" if len(names) == 1 else f"{len(names)} tensors ({shown}{', ...' if len(names) > 3 else ''})"


class _Reader:
    """Reads parameters one after another and counts their bytes."""

    def __init__(self, ops: Ops, checkpoint: Checkpoint, layout: Layout, progress: Progress | None):
        self.ops, self.checkpoint, self.progress = ops, checkpoint, progress
        self.done = 0
        self.total = sum(self._bytes(name) for name in layout.shapes())

    def read(self, parameter: Parameter) -> Array:
        """The machine's array of one parameter."""
        tensors = [self.checkpoint.tensor(name) for name, _ in parameter.tensors]
        host = tensors[0] if len(tensors) == 1 else np.concatenate(tensors)
        _check_range(host, self.ops.dtype, parameter.tensors[0][0])
        weight = self.ops.weight(host.T if parameter.transposed else host)
        self.done += sum(self._bytes(name) for name, _ in parameter.tensors)
        if self.progress is not None:
            self.progress(self.done, self.total)
        return weight

    def _bytes(self, name: str) -> int:
        entry = self.checkpoint.entry(name)
        return entry.end - entry.begin


def _check_range(host: np.ndarray, dtype: np.dtype, name: str) -> None:
    """float16 ends at 65504, and what lies beyond would silently become infinite."""
    if dtype == np.float16 and host.dtype != np.float16 and host.size:
        largest = float(np.abs(host.astype(np.float32, copy=False)).max())
        if largest > float(np.finfo(np.float16).max):
            raise CheckpointError(f"Tensor {name!r} reaches {largest:.3g}, beyond float16's 65504; load with dtype bfloat16 or float32.")
