"""Qwen2, Qwen2.5 and Qwen3: biases or norms on q and k, and sliding windows in some of the layers."""

from minllm.models.config import ModelConfig
from minllm.models.families.common import LLAMA_SHAPE_KEYS, layer_windows, llama_shape, sliding_window
from minllm.models.json_files import Fields

QWEN2_KEYS = QWEN3_KEYS = LLAMA_SHAPE_KEYS | {"use_sliding_window", "sliding_window", "max_window_layers"}


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
    """Qwen3: an RMS norm over each head of q and k, and no bias unless attention_bias is set."""
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
    """Each layer's sliding window, by layer_types, else for layers from max_window_layers on.

    There are none unless use_sliding_window is set.
    """
    window = sliding_window(fields) if fields.flag("use_sliding_window", False) else 0
    first = fields.integer("max_window_layers", 28, minimum=0)
    return layer_windows(fields, layers, window, default=lambda layer: layer >= first)
