"""The families that minllm runs, and how each says in config.json what it is.

Defaults for missing keys are those of the family's own configuration class in transformers, because files that it writes leave out what
equals them. An option that would change the result and that minllm does not compute is refused, never ignored.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minllm.errors import CheckpointError, UnsupportedModelError
from minllm.models.config import ModelConfig
from minllm.models.json_files import Fields
from minllm.models.rope import read_rope_config

# Options of other families (and of quantised checkpoints), each with the values that leave the result as it is.
NEUTRAL_OPTIONS: dict[str, tuple[Any, ...]] = {
    "quantization_config": (),
    "mlp_bias": (False,),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "query_pre_attn_scalar": (),
    "attention_multiplier": (),
    "embedding_multiplier": (1, 1.0),
    "residual_multiplier": (1, 1.0),
    "logits_scaling": (1, 1.0),
    "logit_scale": (1, 1.0),
    "num_local_experts": (0, 1),
    "num_experts": (0, 1),
    "use_qk_norm": (False,),
    "alibi": (False,),
    "attention_sink": (False,),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
}
STORED_DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Architecture:
    """A family: its model_type in config.json, and the function that reads the rest."""

    model_type: str
    read: Callable[[Fields], ModelConfig]


def refuse_unknown_options(fields: Fields) -> None:
    """Raises UnsupportedModelError where an option is set that no architecture here computes."""
    for key, neutral in NEUTRAL_OPTIONS.items():
        if key in fields and fields.values[key] not in neutral:
            value = fields.values[key]
            shown = value.get("quant_method", "set") if isinstance(value, dict) else value
            raise UnsupportedModelError(f"{fields.source} sets {key} ({shown}), which minllm does not compute.")


def _common(fields: Fields) -> dict[str, Any]:
    """What every family says with the same words."""
    dtype = fields.text("dtype", fields.text("torch_dtype", "")).removeprefix("torch.")
    return dict(
        vocab_size=fields.integer("vocab_size"),
        dtype=dtype if dtype in STORED_DTYPES else None,
        bos_token_ids=fields.token_ids("bos_token_id"),
        eos_token_ids=fields.token_ids("eos_token_id"),
    )


def _head_dim(fields: Fields, hidden_size: int, heads: int) -> int:
    """The width of a head: said outright, or the hidden size shared out among the heads."""
    if "head_dim" in fields:
        return fields.integer("head_dim")
    if hidden_size % heads:
        raise CheckpointError(f"{fields.source} has hidden size {hidden_size}, which its {heads} heads do not divide, and no head_dim.")
    return hidden_size // heads


def _silu(fields: Fields) -> str:
    """The activation of the gated feed-forward, which is SiLU in all these families."""
    activation = fields.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModelError(f"{fields.source} says hidden_act = {activation!r}; minllm gates with silu.")
    return "silu"


def _llama_shape(fields: Fields, sliding_windows: Callable[[int], tuple[int, ...]], **options: Any) -> ModelConfig:
    """Llama's layout, which Mistral and Qwen share: RMS norms, a rotary embedding, grouped queries and a gated feed-forward."""
    heads, hidden_size = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    layers = fields.integer("num_hidden_layers")
    head_dim = options.pop("head_dim", None) or _head_dim(fields, hidden_size, heads)
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
        **_common(fields),
        **options,
    )


def _full_attention(layers: int) -> tuple[int, ...]:
    return (0,) * layers


def _llama(fields: Fields) -> ModelConfig:
    """Llama 2, 3 and their like (SmolLM): attention_bias puts a bias on all four projections of the attention."""
    bias = fields.flag("attention_bias", False)
    _refuse_layer_types(fields)
    return _llama_shape(
        fields,
        _full_attention,
        model_type="llama",
        max_position_embeddings=fields.integer("max_position_embeddings", 2048),
        qkv_bias=bias,
        attention_output_bias=bias,
    )


def _mistral(fields: Fields) -> ModelConfig:
    """Mistral: one sliding window for all layers, or none where sliding_window is null."""
    _refuse_layer_types(fields)
    null = "sliding_window" in fields.values and "sliding_window" not in fields
    window = 0 if null else fields.integer("sliding_window", 4096)
    return _llama_shape(
        fields,
        lambda layers: (window,) * layers,
        model_type="mistral",
        max_position_embeddings=fields.integer("max_position_embeddings", 131072),
    )


def _qwen2(fields: Fields) -> ModelConfig:
    """Qwen2 and 2.5: a bias on the query, key and value projections."""
    return _llama_shape(
        fields,
        lambda layers: _qwen_windows(fields, layers),
        model_type="qwen2",
        max_position_embeddings=fields.integer("max_position_embeddings", 32768),
        qkv_bias=True,
    )


def _qwen3(fields: Fields) -> ModelConfig:
    """Qwen3: an RMS norm over each head of q and k, and no bias unless asked for."""
    bias = fields.flag("attention_bias", False)
    return _llama_shape(
        fields,
        lambda layers: _qwen_windows(fields, layers),
        model_type="qwen3",
        max_position_embeddings=fields.integer("max_position_embeddings", 32768),
        head_dim=fields.integer("head_dim", 128),
        qkv_bias=bias,
        attention_output_bias=bias,
        qk_norm=True,
    )


def _refuse_layer_types(fields: Fields) -> None:
    """Llama and Mistral have one kind of attention; a file that lists several kinds means another model."""
    if len(set(map(str, fields.values.get("layer_types") or []))) > 1:
        raise UnsupportedModelError(f"{fields.source} mixes kinds of attention (layer_types), which minllm computes for Qwen only.")


def _qwen_windows(fields: Fields, layers: int) -> tuple[int, ...]:
    """Each layer's window: with use_sliding_window the layers from max_window_layers on, unless layer_types lists them."""
    window = fields.integer("sliding_window", 4096) if fields.flag("use_sliding_window", False) else 0
    kinds = fields.values.get("layer_types")
    if kinds is None:
        first = fields.integer("max_window_layers", 28, minimum=0)
        return tuple(window if layer >= first else 0 for layer in range(layers))
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise CheckpointError(f"{fields.source} must list one of layer_types for each of its {layers} layers.")
    unknown = set(map(str, kinds)) - {"full_attention", "sliding_attention"}
    if unknown:
        raise UnsupportedModelError(f"{fields.source} has layer_types {sorted(unknown)}; minllm has full_attention and sliding_attention.")
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def _gpt2(fields: Fields) -> ModelConfig:
    """GPT-2: layer norms, learned positions, biases everywhere, as many key-value heads as query heads."""
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
        sliding_windows=_full_attention(layers),
        attention_scales=tuple(scale / (layer + 1) if by_layer else scale for layer in range(layers)),
        qkv_bias=True,
        attention_output_bias=True,
        mlp_bias=True,
        tie_word_embeddings=fields.flag("tie_word_embeddings", True),
        **_common(fields),
    )


ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": Architecture("llama", _llama),
    "MistralForCausalLM": Architecture("mistral", _mistral),
    "Qwen2ForCausalLM": Architecture("qwen2", _qwen2),
    "Qwen3ForCausalLM": Architecture("qwen3", _qwen3),
    "GPT2LMHeadModel": Architecture("gpt2", _gpt2),
}
