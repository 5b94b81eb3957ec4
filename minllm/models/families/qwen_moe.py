"""Qwen3-MoE: Qwen3's attention, and experts in every layer in place of the feed-forward."""

from minllm.errors import CheckpointError, UnsupportedModelError
from minllm.models.config import ModelConfig
from minllm.models.families.common import LLAMA_SHAPE_KEYS, llama_shape, sliding_window
from minllm.models.json_files import Fields

NUM_EXPERTS_KEYS = ("num_experts", "num_local_experts")  # transformers writes the second, older files have the first
EXPERTS_KEYS = frozenset(
    (*NUM_EXPERTS_KEYS, "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers")
)
MOST_EXPERTS = 1 << 17  # over all layers; published models have some 20,000
# max_window_layers: unused here, as in transformers, because a window holds for all layers.
QWEN3_MOE_KEYS = LLAMA_SHAPE_KEYS | EXPERTS_KEYS | {"use_sliding_window", "sliding_window", "max_window_layers"}


def read_qwen3_moe(fields: Fields) -> ModelConfig:
    """Qwen3-MoE: norms on q and k; use_sliding_window gives all layers one window.

    Raises UnsupportedModelError if some layers have a plain feed-forward in place of experts.
    """
    _refuse_dense_layers(fields)
    experts = _num_experts(fields, default=128)
    chosen = fields.integer("num_experts_per_tok", 8)
    if chosen > experts:
        raise CheckpointError(f"{fields.source} has num_experts_per_tok {chosen}, and only {experts} experts to choose from.")
    if experts * fields.integer("num_hidden_layers") > MOST_EXPERTS:
        raise CheckpointError(f"{fields.source} has {experts} experts in each layer, more than {MOST_EXPERTS} in all layers together.")
    bias = fields.flag("attention_bias", False)
    window = sliding_window(fields) if fields.flag("use_sliding_window", False) else 0
    return llama_shape(
        fields,
        lambda layers: (window,) * layers,
        model_type="qwen3_moe",
        max_position_embeddings=fields.integer("max_position_embeddings", 32768),
        qkv_bias=bias,
        attention_output_bias=bias,
        qk_norm=True,
        intermediate_size=fields.integer("moe_intermediate_size", 768),
        num_experts=experts,
        num_experts_per_tok=chosen,
        norm_topk_prob=fields.flag("norm_topk_prob", False),
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
