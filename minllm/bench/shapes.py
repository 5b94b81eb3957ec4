"""Shapes of well-known models, for benchmarks that need a model's size and none of its knowledge.

Each is what the model's config.json says, in its own words, so it passes through the same reader as a real checkpoint's.
"""

from typing import Any

from minllm.models.config import ModelConfig
from minllm.models.config_reader import parse_model_config

_LLAMA_3_ROPE = dict(
    rope_theta=500000.0,
    rope_scaling=dict(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
    ),
)
_LLAMA_3 = dict(model_type="llama", vocab_size=128256, rms_norm_eps=1e-5, max_position_embeddings=131072, num_key_value_heads=8)

SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.2-1b": _LLAMA_3
    | _LLAMA_3_ROPE
    | dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, head_dim=64, tie_word_embeddings=True),
    "llama-3.1-8b": _LLAMA_3
    | _LLAMA_3_ROPE
    | dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, tie_word_embeddings=False),
}


def named_config(name: str) -> ModelConfig:
    """The ModelConfig of a shape in SHAPES. Raises KeyError for another name."""
    return parse_model_config(SHAPES[name], source=f"shape {name}")
