"""Llama 2, 3 and their like (SmolLM), and Mistral."""

from minllm.models.config import ModelConfig
from minllm.models.families.common import full_attention, llama_shape, refuse_layer_types
from minllm.models.json_files import Fields


def read_llama(fields: Fields) -> ModelConfig:
    """Llama 2, 3 and their like (SmolLM): attention_bias puts a bias on all four projections of the attention."""
    bias = fields.flag("attention_bias", False)
    refuse_layer_types(fields)
    return llama_shape(
        fields,
        full_attention,
        model_type="llama",
        max_position_embeddings=fields.integer("max_position_embeddings", 2048),
        qkv_bias=bias,
        attention_output_bias=bias,
    )


def read_mistral(fields: Fields) -> ModelConfig:
    """Mistral: one sliding window for all layers, or none if sliding_window is null."""
    refuse_layer_types(fields)
    null = "sliding_window" in fields.values and "sliding_window" not in fields
    window = 0 if null else fields.integer("sliding_window", 4096)
    return llama_shape(
        fields,
        lambda layers: (window,) * layers,
        model_type="mistral",
        max_position_embeddings=fields.integer("max_position_embeddings", 131072),
    )
