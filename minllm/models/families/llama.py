"""Llama 2 and 3 and similar models (SmolLM), and Mistral."""

from minllm.errors import CheckpointError, UnsupportedModelError
from minllm.models.config import ModelConfig
from minllm.models.families.common import LLAMA_SHAPE_KEYS, full_attention, layer_windows, llama_shape, sliding_window
from minllm.models.json_files import Fields

LLAMA_KEYS = LLAMA_SHAPE_KEYS
MISTRAL_KEYS = LLAMA_SHAPE_KEYS | {"sliding_window"}


def read_llama(fields: Fields) -> ModelConfig:
    """Llama 2 and 3 and similar models (SmolLM): attention_bias gives all four projections of the attention a bias."""
    bias = fields.flag("attention_bias", False)
    _refuse_layer_types(fields)
    return llama_shape(
        fields,
        full_attention,
        model_type="llama",
        max_position_embeddings=fields.integer("max_position_embeddings", 2048),
        qkv_bias=bias,
        attention_output_bias=bias,
    )


def read_mistral(fields: Fields) -> ModelConfig:
    """Mistral: one sliding window for all layers, or for those that layer_types names; none if sliding_window is null."""
    window = sliding_window(fields)
    return llama_shape(
        fields,
        lambda layers: layer_windows(fields, layers, window, default=lambda layer: True),
        model_type="mistral",
        max_position_embeddings=fields.integer("max_position_embeddings", 131072),
    )


def _refuse_layer_types(fields: Fields) -> None:
    """Raises UnsupportedModelError if layer_types lists anything but full_attention, which Llama uses in every layer."""
    kinds = fields.values.get("layer_types") or []
    if not isinstance(kinds, list):
        raise CheckpointError(f"{fields.source} says layer_types = {kinds!r}, and it must be a list with a name for each layer.")
    others = set(map(str, kinds)) - {"full_attention"}
    if others:
        raise UnsupportedModelError(
            f"{fields.source} has layer_types {sorted(others)}; minllm computes full_attention for Llama, and sliding_attention for "
            "Mistral and Qwen only."
        )
