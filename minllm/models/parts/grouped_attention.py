"""Grouped-query attention: query head h reads KV head h // (heads // kv_heads).

Multi-head attention has as many KV heads as query heads.

    q, k, v = norm(x) Wq, norm(x) Wk, norm(x) Wv      one matrix [(heads + 2 * kv_heads) * head_dim, hidden]
    out     = softmax(scale * q . K) V Wo             K, V: the cached context; q and k rotated, and normalised if the model has q_norm

Gemma normalises the output once more before it is added to the hidden state (post_norm), and Gemma 2 bounds the scores (soft_cap).

A token's keys and values are 2 * kv_heads * head_dim numbers in each layer's cache. The softmax takes about 5 operations per score.

Sources: Vaswani et al. 2017, "Attention is all you need", section 3.2; Ainslie et al. 2023, "GQA: Training Generalized Multi-Query
Transformer Models from Multi-Head Checkpoints", section 2.2.
"""

from dataclasses import dataclass

from minllm.models.config import ModelConfig
from minllm.models.parts.terms import Matrix, Norm, Sizes, Stage
from minllm.ops.batch import Array, AttentionConfig, Batch, LayerCache, NormWeights
from minllm.ops.protocol import Ops
from minllm.weights.linear import Linear
from minllm.weights.shard import INPUTS
from minllm.weights.stored import Projection, StoredTensor, stacked_linear, stored_linear

FIELDS = (
    "num_attention_heads", "num_key_value_heads", "head_dim", "sliding_windows", "qkv_bias", "attention_output_bias", "qk_norm",
    "post_norms",
)  # fmt: skip
ANGLE_BYTES = 4  # cosines and sines are float32


@dataclass
class GroupedAttention:
    """A layer's attention. Before loading, the arrays are the StoredTensors and StoredLinears of weights/stored.py."""

    norm: NormWeights
    qkv: Linear  # [(heads + 2 * kv_heads) * head_dim, hidden]
    config: AttentionConfig
    output: Linear  # [hidden, heads * head_dim]
    post_norm: NormWeights | None = None  # normalises what the part adds to the hidden state

    def forward(
        self, ops: Ops, x: Array, residual: Array | None, *, batch: Batch, layer_cache: LayerCache, cos_sin: Array | None,
        next_norm: NormWeights | None = None,
    ) -> tuple[Array, Array | None]:  # fmt: skip
        """Attention over norm(x + residual): the new (x, residual), both [T, hidden].

        New keys and values are appended to layer_cache.
        """
        query, residual = ops.normed_qkv(
            x, residual, self.norm, self.qkv, batch=batch, layer_cache=layer_cache, attention_config=self.config, cos_sin=cos_sin
        )  # [T, heads, head_dim], [T, hidden]
        mixed = ops.attention(query, layer_cache, batch, self.config)  # [T, heads * head_dim]
        if self.post_norm is not None:
            return ops.add_norm(ops.linear(mixed, self.output), None, self.post_norm)[0], residual
        return ops.linear_add(mixed, self.output, residual, next_norm)  # both [T, hidden]


# Tensors


def llama_tensors(config: ModelConfig, layer: int, prefix: str) -> GroupedAttention:
    """The stored tensors in Llama's naming; prefix: "model.layers.3."."""
    hidden, head_dim = config.hidden_size, config.head_dim
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    attention = f"{prefix}self_attn."
    projections = (("q_proj", heads), ("k_proj", kv_heads), ("v_proj", kv_heads))
    return GroupedAttention(
        norm=config.norm_of(f"{prefix}input_layernorm"),
        qkv=stacked_linear(
            tuple(Projection(attention + name, n * head_dim, hidden, config.qkv_bias, units=(n,)) for name, n in projections)
        ),
        config=config.attention(layer, *(_head_norm(config, f"{attention}{name}.weight") for name in ("q_norm", "k_norm"))),
        output=stored_linear(attention, "o_proj", hidden, heads * head_dim, config.attention_output_bias, axis=INPUTS),
        post_norm=config.post_norm_of(f"{prefix}post_attention_layernorm"),
    )


def gpt2_tensors(config: ModelConfig, layer: int, prefix: str) -> GroupedAttention:
    """The stored tensors in GPT-2's naming, with q, k and v as one module; prefix: "transformer.h.3."."""
    hidden, heads = config.hidden_size, config.num_attention_heads
    return GroupedAttention(
        norm=config.norm_of(f"{prefix}ln_1"),
        qkv=stored_linear(prefix, "attn.c_attn", 3 * hidden, hidden, config.qkv_bias, transposed=True, units=(heads,) * 3),
        config=config.attention(layer),
        output=stored_linear(prefix, "attn.c_proj", hidden, hidden, config.attention_output_bias, axis=INPUTS, transposed=True),
    )


def _head_norm(config: ModelConfig, name: str) -> StoredTensor | None:
    return StoredTensor(name, (config.head_dim,), config.norm_offset) if config.qk_norm else None


# Costs


def query_width(config: ModelConfig) -> int:
    """Numbers in the queries of one token in one layer."""
    return config.num_attention_heads * config.head_dim


def key_value_width(config: ModelConfig) -> int:
    """Numbers in the keys and values of one token in one layer."""
    return 2 * config.num_key_value_heads * config.head_dim


def matrices(config: ModelConfig) -> tuple[Matrix, ...]:
    """The linear layers as one GEMM each, in order."""
    query, key_value, hidden = query_width(config), key_value_width(config), config.hidden_size
    return (
        Matrix("qkv projection", query + key_value, hidden, config.qkv_bias),
        Matrix("output projection", hidden, query, config.attention_output_bias),
    )


def vector_parameters(config: ModelConfig) -> int:
    """Number of parameters of q_norm, k_norm and post_norm; the norm of the hidden state and the biases are counted elsewhere."""
    return head_norm_parameters(config) + config.hidden_size * config.post_norms


def head_norm_parameters(config: ModelConfig) -> int:
    """Number of parameters of q_norm and k_norm."""
    return 2 * config.head_dim * config.qk_norm


def stages(config: ModelConfig, s: Sizes) -> list[Stage | Matrix | Norm]:
    """The stages of the part, in order.

    A Stage counts bytes and operations over all layers; matrices and norms are left to costs/.
    """
    layers, query, key_value = config.num_hidden_layers, query_width(config), key_value_width(config)
    turned = 0 if config.rope is None else layers * s.tokens * (query + key_value // 2)  # elements of q and k
    angles = 0 if config.rope is None else config.head_dim * ANGLE_BYTES
    qkv, output = matrices(config)
    append = Stage(
        "rope and append",
        weight_bytes=layers * head_norm_parameters(config) * s.item,
        kv_bytes=int(layers * s.tokens * key_value * (s.kv_item + s.item * bool(s.exact))),
        activation_bytes=layers * s.tokens * ((2 * query + key_value) * s.item + angles),
        other_flops=(7 if config.qk_norm else 3) * turned,
    )
    attention = Stage(
        "attention",
        kv_bytes=int(key_value * (s.read * s.kv_item + s.exact * s.item)),
        activation_bytes=layers * 2 * s.tokens * query * s.item,
        flops=4 * query * s.visible,
        other_flops=5 * config.num_attention_heads * s.visible,
    )
    post_norms = [Norm("attention post-norm", without_residual=layers)] * config.post_norms
    return [Norm("attention norm", without_residual=1), qkv, append, attention, output, *post_norms]
