"""Readers that several families share: common keys, and Llama's architecture, which Mistral and Qwen share."""

from collections.abc import Callable
from typing import Any

from minllm.errors import CheckpointError, UnsupportedModelError
from minllm.models.config import ModelConfig
from minllm.models.json_files import Fields
from minllm.models.rope import read_rope_config

STORED_DTYPES = ("float32", "float16", "bfloat16")
COMMON_KEYS = frozenset(("vocab_size", "dtype", "torch_dtype", "bos_token_id", "eos_token_id", "tie_word_embeddings"))
LLAMA_SHAPE_KEYS = COMMON_KEYS | {
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act",
    "rms_norm_eps", "max_position_embeddings", "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor",
    "original_max_position_embeddings", "layer_types",
    # Readers that ignore it do so because transformers does; a bias among the tensors is then refused as unused.
    "attention_bias",
}  # fmt: skip


def common_fields(fields: Fields) -> dict[str, Any]:
    """Values of ModelConfig that every family has under the same keys."""
    dtype = fields.text("dtype", fields.text("torch_dtype", "")).removeprefix("torch.")
    return dict(
        vocab_size=fields.integer("vocab_size"),
        dtype=dtype if dtype in STORED_DTYPES else None,
        bos_token_ids=fields.token_ids("bos_token_id"),
        eos_token_ids=fields.token_ids("eos_token_id"),
    )


def head_dim_of(fields: Fields, hidden_size: int, heads: int) -> int:
    """head_dim if it is given, else the hidden size divided by the number of heads."""
    if "head_dim" in fields:
        return fields.integer("head_dim")
    if hidden_size % heads:
        raise CheckpointError(f"{fields.source} has hidden size {hidden_size}, which its {heads} heads do not divide, and no head_dim.")
    return hidden_size // heads


def llama_shape(fields: Fields, sliding_windows: Callable[[int], tuple[int, ...]], **options: Any) -> ModelConfig:
    """A ModelConfig with Llama's architecture: RMS norms, RoPE, grouped-query attention, gated feed-forward."""
    heads, hidden_size = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    layers = fields.integer("num_hidden_layers")
    head_dim = options.pop("head_dim", None) or head_dim_of(fields, hidden_size, heads)
    return ModelConfig(
        hidden_size=hidden_size,
        intermediate_size=options.pop("intermediate_size", None) or fields.integer("intermediate_size"),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=fields.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        norm="rms_norm",
        norm_epsilon=fields.positive("rms_norm_eps", 1e-6),
        activation=_silu(fields),
        gated_mlp=True,
        rope=read_rope_config(fields),
        sliding_windows=sliding_windows(layers),
        attention_scales=(head_dim**-0.5,) * layers,
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        **common_fields(fields),
        **options,
    )


def full_attention(layers: int) -> tuple[int, ...]:
    """The sliding_windows of a model without any: 0 for each layer."""
    return (0,) * layers


def _silu(fields: Fields) -> str:
    """The activation of the gated feed-forward: SiLU in all these families, else UnsupportedModelError."""
    activation = fields.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModelError(f"{fields.source} says hidden_act = {activation!r}; minllm gates with silu.")
    return "silu"


def layer_windows(fields: Fields, layers: int, window: int, default: Callable[[int], bool]) -> tuple[int, ...]:
    """Each layer's sliding window: layer_types decides which layers have one, and if it is missing `default(layer)`.

    window: the size of all windows; 0 means that there are none, and then layer_types must not list any.
    """
    kinds = layer_kinds(fields, layers)
    if kinds is None:
        return tuple(window if default(layer) else 0 for layer in range(layers))
    if "sliding_attention" in kinds and not window:
        raise CheckpointError(f"{fields.source} has layer_types of sliding_attention and no sliding_window; it must say how many tokens.")
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def layer_kinds(fields: Fields, layers: int) -> list[str] | None:
    """layer_types, "full_attention" or "sliding_attention" per layer; None if the key is missing.

    Raises UnsupportedModelError for other kinds of layers.
    """
    kinds = fields.values.get("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise CheckpointError(f"{fields.source} must list one of layer_types for each of its {layers} layers.")
    unknown = set(map(str, kinds)) - {"full_attention", "sliding_attention"}
    if unknown:
        raise UnsupportedModelError(f"{fields.source} has layer_types {sorted(unknown)}; minllm has full_attention and sliding_attention.")
    return kinds


def sliding_window(fields: Fields) -> int:
    """The size of the window: 4096 if the key is missing, 0 (none) if it is null."""
    null = "sliding_window" in fields.values and "sliding_window" not in fields
    return 0 if null else fields.integer("sliding_window", 4096)
