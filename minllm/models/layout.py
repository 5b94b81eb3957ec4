"""Layouts: the stored tensors of a model, and how they form the arrays and Linears that the forward pass takes.

A layout is a ModelWeights with leaves that are not loaded yet: a StoredTensor for each array that is one tensor of the file, a StoredLinear
for each Linear. Each part of a layer lists its own tensors (parts/); embedding, final norm and head are here. GPT-2 stores its matrices
as [inputs, outputs] (its Conv1D), all other families as [outputs, inputs].
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from math import prod
from typing import Any

from minllm.models.config import ModelConfig
from minllm.models.parts import parts_of
from minllm.models.parts.experts import Experts
from minllm.models.parts.gated_mlp import GatedMlp
from minllm.models.parts.grouped_attention import GroupedAttention
from minllm.models.parts.plain_mlp import PlainMlp
from minllm.ops.batch import Array, NormWeights
from minllm.weights.format import WeightFormat
from minllm.weights.formats import plain_format
from minllm.weights.linear import Linear
from minllm.weights.stored import StoredLinear, StoredTensor, stored_linear


@dataclass
class Layer:
    """One layer: its attention and its feed-forward."""

    attention: GroupedAttention
    mlp: GatedMlp | PlainMlp | Experts


@dataclass
class ModelWeights:
    """The layers, and the embedding, final norm and head around them.

    A tied head multiplies by the embedding itself.
    """

    embedding: Array  # [vocab, hidden]
    position_embedding: Array | None  # [max_position_embeddings, hidden]
    final_norm: NormWeights
    lm_head: Linear  # [vocab, hidden]
    layers: list[Layer]


@dataclass(frozen=True)
class Layout:
    """The tensors of a model.

    Its matrices are held in `weight_format`, except for modules that the format does not cover.
    """

    config: ModelConfig
    model: ModelWeights  # before loading
    weight_format: WeightFormat
    plain: WeightFormat

    def format_of(self, stored: StoredLinear) -> WeightFormat:
        """The layout's format if it covers all modules of the Linear, else the plain format."""
        # A tied head's tensor bears the name of the embedding, but formats list the module as lm_head.
        names = ["lm_head"] if stored is self.model.lm_head else [one.name for one in stored.projections]
        return self.weight_format.of(names) or self.plain

    def check_format(self) -> None:
        """Raises InvalidOptionError if a matrix does not fit its format."""
        for leaf in leaves(self.model):
            if isinstance(leaf, StoredLinear):
                for projection in leaf.projections:
                    self.format_of(leaf).check_inputs(projection.name, projection.inputs)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The name and shape of every tensor that the checkpoint must hold."""
        found: dict[str, tuple[int, ...]] = {}
        for leaf in leaves(self.model):
            if isinstance(leaf, StoredTensor):
                found[leaf.name] = leaf.shape
                continue
            for projection in leaf.projections:
                found |= self.format_of(leaf).tensors(projection)
            found |= leaf.biases
        return found

    def matrices(self) -> list[tuple[int, int]]:
        """[outputs, inputs] of the linear layers of the first layer, and of the head; without experts, which have kernels of their own."""
        layer = self.model.layers[0]
        experts = (layer.mlp.gate_up, layer.mlp.down) if isinstance(layer.mlp, Experts) else ()
        linears = [leaf for leaf in (*leaves(layer), self.model.lm_head) if isinstance(leaf, StoredLinear)]
        return [leaf.shape for leaf in linears if not any(leaf is one for one in experts)]

    def weight_bytes(self, itemsize: int) -> int:
        """Bytes of the loaded weights, with `itemsize` bytes per number of every plain tensor."""
        counted, total = set(), 0
        for leaf in leaves(self.model):
            if isinstance(leaf, StoredTensor):
                total += prod(leaf.shape) * itemsize
                counted.add(leaf.name)
                continue
            weight_format = self.format_of(leaf)
            total += sum(map(prod, leaf.biases.values())) * itemsize
            if not weight_format.is_plain:
                total += weight_format.matrix_bytes(*leaf.shape)
            elif not counted.intersection(weight_format.tensors(leaf.projections[0])):  # a tied head takes no memory of its own
                total += prod(leaf.shape) * itemsize
        return total


def leaves(value: object) -> Iterator[StoredTensor | StoredLinear]:
    """All StoredTensors and StoredLinears of a layout, in the order of loading."""
    if isinstance(value, StoredTensor | StoredLinear):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from leaves(one)
    elif is_dataclass(value):
        for field in fields(value):
            yield from leaves(getattr(value, field.name))


def layout_of(config: ModelConfig, prefixed: bool = True, weight_format: WeightFormat | None = None) -> Layout:
    """The layout of a model.

    prefixed: False for checkpoints of the bare decoder ("layers.0..." instead of "model.layers.0..."). weight_format: the format of its
    matrices; None leaves them plain.
    """
    plain = plain_format("float32")  # every plain format stores the same tensors
    model = (_gpt2_model if config.model_type == "gpt2" else _llama_model)(config, prefixed)
    return Layout(config, model, weight_format or plain, plain)


def _llama_model(config: ModelConfig, prefixed: bool) -> ModelWeights:
    prefix, (attention, mlp) = "model." if prefixed else "", parts_of(config)

    def layer(index: int) -> Layer:
        place = f"{prefix}layers.{index}."
        return Layer(attention.llama_tensors(config, index, place), mlp.llama_tensors(config, place))

    return ModelWeights(
        embedding=StoredTensor(f"{prefix}embed_tokens.weight", (config.vocab_size, config.hidden_size)),
        position_embedding=None,
        final_norm=config.norm_of(f"{prefix}norm"),
        lm_head=_head(config, f"{prefix}embed_tokens"),
        layers=[layer(index) for index in range(config.num_hidden_layers)],
    )


def _gpt2_model(config: ModelConfig, prefixed: bool) -> ModelWeights:
    prefix, (attention, mlp) = "transformer." if prefixed else "", parts_of(config)

    def layer(index: int) -> Layer:
        place = f"{prefix}h.{index}."
        return Layer(attention.gpt2_tensors(config, index, place), mlp.gpt2_tensors(config, place))

    return ModelWeights(
        embedding=StoredTensor(f"{prefix}wte.weight", (config.vocab_size, config.hidden_size)),
        position_embedding=StoredTensor(f"{prefix}wpe.weight", (config.max_position_embeddings, config.hidden_size)),
        final_norm=config.norm_of(f"{prefix}ln_f"),
        lm_head=_head(config, f"{prefix}wte"),
        layers=[layer(index) for index in range(config.num_hidden_layers)],
    )


def _head(config: ModelConfig, embedding: str) -> Any:
    """The stored head; the embedding if the two are tied."""
    return stored_linear("", embedding if config.tie_word_embeddings else "lm_head", config.vocab_size, config.hidden_size)
