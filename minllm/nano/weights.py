"""The matrices of a checkpoint, as the forward pass takes them."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minllm.errors import UnsupportedModelError
from minllm.kernels.rope.reference import rope_table
from minllm.models.config import ModelConfig
from minllm.models.layout import layout_of
from minllm.models.rope import inverse_frequencies
from minllm.models.weights import StoredWeights, check_tensors, is_prefixed
from minllm.runtime.array_protocol import Array

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass
class Layer:
    """One layer. A matrix is [outputs, inputs], as Hugging Face stores it."""

    attention_norm: Array  # [hidden]
    query: Array  # [heads * head_dim, hidden]
    query_bias: Array | None  # [heads * head_dim], or None; the other biases likewise
    key: Array  # [kv_heads * head_dim, hidden]
    key_bias: Array | None
    value: Array
    value_bias: Array | None
    query_norm: Array | None  # [head_dim], or None
    key_norm: Array | None
    output: Array  # [hidden, heads * head_dim]
    output_bias: Array | None
    mlp_norm: Array  # [hidden]
    gate_up: Array  # [2 * intermediate, hidden]: the gate first
    down: Array  # [hidden, intermediate]


@dataclass
class Weights:
    """A model's arrays, on the device of its operations."""

    embedding: Array  # [vocab_size, hidden]
    layers: list[Layer]
    norm: Array  # [hidden]
    head: Array  # [vocab_size, hidden]; the embedding itself if they are tied
    cos_sin: Array  # float32 [positions, head_dim]


def load_weights(ops: Any, config: ModelConfig, checkpoint: StoredWeights, dtype: np.dtype, max_model_len: int) -> Weights:
    """Read a checkpoint into arrays of `dtype`.

    Raises UnsupportedModelError for other families, and CheckpointError for tensors that are missing, unknown or of another shape.
    """
    if config.model_type not in FAMILIES or config.mlp_bias:
        raise UnsupportedModelError(f"minllm.nano computes {', '.join(FAMILIES)}, without biases in the MLP; minllm.LLM runs this model.")
    prefixed = is_prefixed(checkpoint)
    check_tensors(layout_of(config, prefixed), checkpoint)
    prefix = "model." if prefixed else ""

    def read(*names: str) -> Any:
        """One array of the tensors of these names, one below the other; None if the model has none."""
        if names[0] not in checkpoint:
            return None
        tensors = [checkpoint.tensor(name).astype(dtype, copy=False) for name in names]
        return ops.array(tensors[0] if len(tensors) == 1 else np.concatenate(tensors))

    def layer(index: int) -> Layer:
        start = f"{prefix}layers.{index}."
        part = f"{start}self_attn."
        return Layer(
            attention_norm=read(f"{start}input_layernorm.weight"),
            query=read(f"{part}q_proj.weight"), query_bias=read(f"{part}q_proj.bias"),
            key=read(f"{part}k_proj.weight"), key_bias=read(f"{part}k_proj.bias"),
            value=read(f"{part}v_proj.weight"), value_bias=read(f"{part}v_proj.bias"),
            query_norm=read(f"{part}q_norm.weight"), key_norm=read(f"{part}k_norm.weight"),
            output=read(f"{part}o_proj.weight"), output_bias=read(f"{part}o_proj.bias"),
            mlp_norm=read(f"{start}post_attention_layernorm.weight"),
            gate_up=read(f"{start}mlp.gate_proj.weight", f"{start}mlp.up_proj.weight"),
            down=read(f"{start}mlp.down_proj.weight"),
        )  # fmt: skip

    embedding = read(f"{prefix}embed_tokens.weight")
    return Weights(
        embedding,
        [layer(index) for index in range(config.num_hidden_layers)],
        read(f"{prefix}norm.weight"),
        embedding if config.tie_word_embeddings else read("lm_head.weight"),
        ops.array(rope_table(max_model_len, config.head_dim, inverse_frequencies(config.rope, config.head_dim))),
    )
