"""Gemma 2 and 3: sliding windows in most layers, norms around each part, scaled embeddings, and a feed-forward gated by GELU.

Gemma 2 bounds scores and logits by soft caps, and every other layer has a window. Gemma 3 normalises queries and keys instead, has a window
in five of six layers, and turns heads by other angles in layers with a window than in those that see the whole context. Both store the
weights of norms as their distance from 1.

Sources: Gemma Team 2024, "Gemma 2: Improving Open Language Models at a Practical Size"; Gemma Team 2025, "Gemma 3 Technical Report".
"""

from collections.abc import Callable
from typing import Any

from minllm.errors import UnsupportedModelError
from minllm.models.config import ModelConfig
from minllm.models.families.common import LLAMA_SHAPE_KEYS, common_fields, layer_windows, sliding_window
from minllm.models.json_files import Fields
from minllm.models.rope import RopeConfig, read_rope_config

GEMMA2_KEYS = LLAMA_SHAPE_KEYS - {"hidden_act"} | {
    "hidden_activation", "hidden_act", "query_pre_attn_scalar", "sliding_window", "attn_logit_softcapping", "final_logit_softcapping",
    "use_bidirectional_attention",
}  # fmt: skip
GEMMA3_KEYS = GEMMA2_KEYS | {
    "sliding_window_pattern", "rope_local_base_freq",
    "_sliding_window_pattern",  # written beside layer_types, which says the same
}  # fmt: skip
GLOBAL_THETA, LOCAL_THETA = 1_000_000.0, 10_000.0


def read_gemma2(fields: Fields) -> ModelConfig:
    """Gemma 2: the first of every two layers has a window, unless layer_types names others."""
    return _gemma_shape(
        fields,
        default_window=lambda layer: layer % 2 == 0,
        model_type="gemma2",
        max_position_embeddings=fields.integer("max_position_embeddings", 8192),
        rope=read_rope_config(fields),
        attention_soft_cap=_soft_cap(fields, "attn_logit_softcapping", 50.0),
        logit_soft_cap=_soft_cap(fields, "final_logit_softcapping", 30.0),
    )


def read_gemma3(fields: Fields) -> ModelConfig:
    """Gemma 3's language model: every sixth layer sees the whole context, unless layer_types names others.

    attn_logit_softcapping has no effect, because transformers' Gemma 3 ignores it.
    """
    pattern = fields.integer("sliding_window_pattern", 6)
    whole, local = _rotations(fields)
    return _gemma_shape(
        fields,
        default_window=lambda layer: (layer + 1) % pattern != 0,
        model_type="gemma3_text",
        max_position_embeddings=fields.integer("max_position_embeddings", 131072),
        rope=whole,
        local_rope=local,
        qk_norm=True,
        logit_soft_cap=_soft_cap(fields, "final_logit_softcapping", 0.0),
    )


def _gemma_shape(fields: Fields, default_window: Callable[[int], bool], **options: Any) -> ModelConfig:
    """What Gemma 2 and 3 have in common; default_window(layer): whether a layer has a window if layer_types is missing."""
    layers, hidden_size = fields.integer("num_hidden_layers", 26), fields.integer("hidden_size", 2304)
    activation = fields.text("hidden_activation", fields.text("hidden_act", "gelu_pytorch_tanh"))
    if activation not in ("gelu_pytorch_tanh", "gelu_new"):
        raise UnsupportedModelError(f"{fields.source} says hidden_activation = {activation!r}; minllm gates Gemma with gelu_pytorch_tanh.")
    if fields.flag("use_bidirectional_attention", False):
        raise UnsupportedModelError(f"{fields.source} says use_bidirectional_attention; minllm generates text, with causal attention.")
    bias = fields.flag("attention_bias", False)
    return ModelConfig(
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size", 9216),
        num_hidden_layers=layers,
        num_attention_heads=fields.integer("num_attention_heads", 8),
        num_key_value_heads=fields.integer("num_key_value_heads", 4),
        head_dim=fields.integer("head_dim", 256),
        norm="rms_norm",
        norm_epsilon=fields.positive("rms_norm_eps", 1e-6),
        norm_offset=1.0,
        post_norms=True,
        activation="gelu_tanh",
        gated_mlp=True,
        embedding_scale=hidden_size**0.5,
        sliding_windows=layer_windows(fields, layers, sliding_window(fields), default_window),
        attention_scales=(fields.positive("query_pre_attn_scalar", 256) ** -0.5,) * layers,
        qkv_bias=bias,
        attention_output_bias=bias,
        tie_word_embeddings=fields.flag("tie_word_embeddings", True),
        **common_fields(fields),
        **options,
    )


def _rotations(fields: Fields) -> tuple[RopeConfig, RopeConfig]:
    """The rotations of layers that see the whole context, and of those with a window.

    New files have one entry in rope_parameters for each kind of layer. In old ones rope_theta and rope_scaling are those of the first kind,
    and rope_local_base_freq is the theta of the second.
    """
    by_kind = fields.object("rope_parameters")
    scaling = fields.object("rope_scaling")
    found = []
    for kind, theta_key, default in (
        ("full_attention", "rope_theta", GLOBAL_THETA), ("sliding_attention", "rope_local_base_freq", LOCAL_THETA),
    ):  # fmt: skip
        values = dict(Fields(by_kind, f"rope_parameters of {fields.source}").object(kind))
        if kind == "full_attention":
            values |= scaling
        values.setdefault("rope_theta", fields.positive(theta_key, default))
        of_kind = {"rope_parameters": values, "max_position_embeddings": fields.integer("max_position_embeddings", 131072)}
        found.append(read_rope_config(Fields(of_kind, fields.source)))
    return found[0], found[1]


def _soft_cap(fields: Fields, key: str, default: float) -> float:
    """A soft cap; 0 if the key is null."""
    null = key in fields.values and key not in fields
    return 0.0 if null else fields.positive(key, default) if default or key in fields else 0.0
