"""Qwen2, Qwen2.5 and Qwen3: biases or norms on q and k, and sliding windows in some of the layers."""

from minllm.errors import CheckpointError, UnsupportedModelError
from minllm.models.config import ModelConfig
from minllm.models.families.common import llama_shape
from minllm.models.json_files import Fields


def read_qwen2(fields: Fields) -> ModelConfig:
    """Qwen2 and 2.5: a bias on the query, key and value projections."""
    return llama_shape(
        fields,
        lambda layers: _qwen_windows(fields, layers),
        model_type="qwen2",
        max_position_embeddings=fields.integer("max_position_embeddings", 32768),
        qkv_bias=True,
    )


def read_qwen3(fields: Fields) -> ModelConfig:
    """Qwen3: an RMS norm over each head of q and k, and no bias unless asked for."""
    bias = fields.flag("attention_bias", False)
    return llama_shape(
        fields,
        lambda layers: _qwen_windows(fields, layers),
        model_type="qwen3",
        max_position_embeddings=fields.integer("max_position_embeddings", 32768),
        head_dim=fields.integer("head_dim", 128),
        qkv_bias=bias,
        attention_output_bias=bias,
        qk_norm=True,
    )


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
