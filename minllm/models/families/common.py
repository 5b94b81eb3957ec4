"""What families have in common: keys of the same name, and the shape of Llama, which Mistral and Qwen share."""

from collections.abc import Callable
from typing import Any

from minllm.errors import CheckpointError, UnsupportedModelError
from minllm.models.config import ModelConfig
from minllm.models.json_files import Fields
from minllm.models.rope import read_rope_config

STORED_DTYPES = ("float32", "float16", "bfloat16")


def common_fields(fields: Fields) -> dict[str, Any]:
    """The fields that every family has under the same keys."""
    dtype = fields.text("dtype", fields.text("torch_dtype", "")).removeprefix("torch.")
    return dict(
        vocab_size=fields.integer("vocab_size"),
        dtype=dtype if dtype in STORED_DTYPES else None,
        bos_token_ids=fields.token_ids("bos_token_id"),
        eos_token_ids=fields.token_ids("eos_token_id"),
    )


def head_dim_of(fields: Fields, hidden_size: int, heads: int) -> int:
    """The width of a head: given, or the hidden size divided by the heads."""
    if "head_dim" in fields:
        return fields.integer("head_dim")
    if hidden_size % heads:
        raise CheckpointError(f"{fields.source} has hidden size {hidden_size}, which its {heads} heads do not divide, and no head_dim.")
    return hidden_size // heads


def llama_shape(fields: Fields, sliding_windows: Callable[[int], tuple[int, ...]], **options: Any) -> ModelConfig:
    """Llama's layout, which Mistral and Qwen share: RMS norms, a rotary embedding, grouped queries and a gated feed-forward."""
    heads, hidden_size = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    layers = fields.integer("num_hidden_layers")
    head_dim = options.pop("head_dim", None) or head_dim_of(fields, hidden_size, heads)
    return ModelConfig(
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
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
    """The sliding windows of layers that have none."""
    return (0,) * layers


def _silu(fields: Fields) -> str:
    """The activation of the gated feed-forward, which is SiLU in all these families."""
    activation = fields.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModelError(f"{fields.source} says hidden_act = {activation!r}; minllm gates with silu.")
    return "silu"


def refuse_layer_types(fields: Fields) -> None:
    """Llama and Mistral have one kind of attention; a file that lists several kinds is another model."""
    kinds = fields.values.get("layer_types")
    if kinds is not None and not isinstance(kinds, list):
        raise CheckpointError(f"{fields.source} says layer_types = {kinds!r}, and it must be a list with a name for each layer.")
    if len(set(map(str, kinds or []))) > 1:
        raise UnsupportedModelError(f"{fields.source} mixes kinds of attention (layer_types), which minllm computes for Qwen only.")
