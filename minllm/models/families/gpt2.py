"""GPT-2: layer norms, learned positions, and a feed-forward without a gate."""

from minllm.errors import CheckpointError, UnsupportedModelError
from minllm.models.config import ModelConfig
from minllm.models.families.common import COMMON_KEYS, common_fields, full_attention
from minllm.models.json_files import Fields

GPT2_KEYS = COMMON_KEYS | {
    "n_embd", "n_head", "n_layer", "n_inner", "n_positions", "activation_function", "layer_norm_epsilon", "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx",
}  # fmt: skip


def read_gpt2(fields: Fields) -> ModelConfig:
    """GPT-2: layer norms, learned positions, biases in every linear layer, multi-head attention."""
    heads, hidden_size, layers = fields.integer("n_head", 12), fields.integer("n_embd", 768), fields.integer("n_layer", 12)
    activations = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
    activation = fields.text("activation_function", "gelu_new")
    if activation not in activations:
        raise UnsupportedModelError(f"{fields.source} says activation_function = {activation!r}; minllm computes {', '.join(activations)}.")
    if hidden_size % heads:
        raise CheckpointError(f"{fields.source} has n_embd {hidden_size}, which its {heads} heads do not divide.")
    scale = (hidden_size // heads) ** -0.5 if fields.flag("scale_attn_weights", True) else 1.0
    by_layer = fields.flag("scale_attn_by_inverse_layer_idx", False)
    return ModelConfig(
        model_type="gpt2",
        hidden_size=hidden_size,
        intermediate_size=fields.integer("n_inner", 4 * hidden_size),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=hidden_size // heads,
        max_position_embeddings=fields.integer("n_positions", 1024),
        norm="layer_norm",
        norm_epsilon=fields.positive("layer_norm_epsilon", 1e-5),
        activation=activations[activation],
        gated_mlp=False,
        rope=None,
        sliding_windows=full_attention(layers),
        attention_scales=tuple(scale / (layer + 1) if by_layer else scale for layer in range(layers)),
        qkv_bias=True,
        attention_output_bias=True,
        mlp_bias=True,
        tie_word_embeddings=fields.flag("tie_word_embeddings", True),
        **common_fields(fields),
    )
