"""Qwen2-MoE and Qwen3-MoE: Qwen's attention, and experts in every layer in place of the feed-forward."""

from collections.abc import Callable, Mapping
from typing import Any

from minllm.errors import CheckpointError, UnsupportedModelError
from minllm.models.config import ModelConfig
from minllm.models.families.common import LLAMA_SHAPE_KEYS, layer_kinds, layer_windows, llama_shape, sliding_window
from minllm.models.json_files import Fields

NUM_EXPERTS_KEYS = ("num_experts", "num_local_experts")  # transformers writes the second, older files have the first
EXPERTS_KEYS = frozenset(
    (*NUM_EXPERTS_KEYS, "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers")
)
MOST_EXPERTS = 1 << 17  # over all layers; published models have some 20,000
# max_window_layers: unused by Qwen3-MoE, as in transformers, because a window holds for all layers.
QWEN3_MOE_KEYS = LLAMA_SHAPE_KEYS | EXPERTS_KEYS | {"use_sliding_window", "sliding_window", "max_window_layers"}
QWEN2_MOE_KEYS = QWEN3_MOE_KEYS | {"qkv_bias", "shared_expert_intermediate_size"}


def read_qwen2_moe(fields: Fields) -> ModelConfig:
    """Qwen2-MoE: a bias on q, k and v, and an expert that every token takes, behind a gate.

    use_sliding_window gives a window to the layers that layer_types names, else to every other layer before max_window_layers.
    """
    window = sliding_window(fields) if fields.flag("use_sliding_window", False) else 0
    last = fields.integer("max_window_layers", 28, minimum=0)
    return _with_experts(
        fields,
        lambda layers: layer_windows(fields, layers, window, default=lambda layer: layer % 2 == 0 and layer < last),
        dict(num_experts=60, num_experts_per_tok=4, moe_intermediate_size=1408),
        model_type="qwen2_moe",
        qkv_bias=fields.flag("qkv_bias", True),
        shared_expert_intermediate_size=fields.integer("shared_expert_intermediate_size", 5632),
    )


def read_qwen3_moe(fields: Fields) -> ModelConfig:
    """Qwen3-MoE: norms on q and k; use_sliding_window gives all layers one window, whatever layer_types says, as in transformers.

    Raises UnsupportedModelError if some layers have a plain feed-forward in place of experts, or another kind of attention.
    """
    layer_kinds(fields, fields.integer("num_hidden_layers"))
    bias = fields.flag("attention_bias", False)
    window = sliding_window(fields) if fields.flag("use_sliding_window", False) else 0
    return _with_experts(
        fields,
        lambda layers: (window,) * layers,
        dict(num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768),
        model_type="qwen3_moe",
        qkv_bias=bias,
        attention_output_bias=bias,
        qk_norm=True,
    )


def _with_experts(
    fields: Fields, sliding_windows: Callable[[int], tuple[int, ...]], defaults: Mapping[str, int], **options: Any
) -> ModelConfig:  # fmt: skip
    """A ModelConfig with experts in every layer; defaults: of missing keys."""
    _refuse_dense_layers(fields)
    experts = _num_experts(fields, defaults["num_experts"])
    chosen = fields.integer("num_experts_per_tok", defaults["num_experts_per_tok"])
    if chosen > experts:
        raise CheckpointError(f"{fields.source} has num_experts_per_tok {chosen}, and only {experts} experts to choose from.")
    if experts * fields.integer("num_hidden_layers") > MOST_EXPERTS:
        raise CheckpointError(f"{fields.source} has {experts} experts in each layer, more than {MOST_EXPERTS} in all layers together.")
    return llama_shape(
        fields,
        sliding_windows,
        max_position_embeddings=fields.integer("max_position_embeddings", 32768),
        intermediate_size=fields.integer("moe_intermediate_size", defaults["moe_intermediate_size"]),
        num_experts=experts,
        num_experts_per_tok=chosen,
        norm_topk_prob=fields.flag("norm_topk_prob", False),
        **options,
    )


def _num_experts(fields: Fields, default: int) -> int:
    """The number of experts per layer, under either of its keys. Raises CheckpointError if the two differ."""
    found = {fields.integer(key) for key in NUM_EXPERTS_KEYS if key in fields} or {default}
    if len(found) > 1:
        raise CheckpointError(f"{fields.source} has different numbers of experts, {sorted(found)}, as {' and '.join(NUM_EXPERTS_KEYS)}.")
    return found.pop()


def _refuse_dense_layers(fields: Fields) -> None:
    """Raises UnsupportedModelError unless every layer has experts."""
    if fields.integer("decoder_sparse_step", 1) != 1:
        step = fields.values["decoder_sparse_step"]
        raise UnsupportedModelError(f"{fields.source} says decoder_sparse_step = {step}; minllm runs models with experts in every layer.")
    if fields.values.get("mlp_only_layers"):
        layers = fields.values["mlp_only_layers"]
        raise UnsupportedModelError(f"{fields.source} says mlp_only_layers = {layers}; minllm runs models with experts in every layer.")
