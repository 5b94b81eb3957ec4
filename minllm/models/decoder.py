"""The forward pass of a decoder-only transformer, once for every family and every machine.

    hidden = embedding of the tokens
    each layer:  hidden += output(attention(norm(hidden)));  hidden += feed_forward(norm(hidden))
    logits = head(norm(hidden))

(Vaswani et al. 2017, section 3, in the pre-norm order of GPT-2.) `hidden` is carried as a pair (x, residual) whose sum it is, or as x alone
with None: each normalisation adds the last block's output x to the residual in the same step, which saves a pass over memory. T tokens of
all sequences lie in one flat batch; only attention knows which belong together.
"""

from collections.abc import Sequence

from minllm.models.model import Model
from minllm.models.weights import LayerWeights
from minllm.ops.protocol import Array, Batch, LayerCache, Ops


def forward(ops: Ops, model: Model, batch: Batch, cache: Sequence[LayerCache]) -> Array:
    """The logits of the batch's wanted rows, float32 [R, vocab]; the keys and values of its tokens are written to `cache`, one a layer."""
    weights = model.weights
    x = ops.embed(batch, weights.embedding, weights.position_embedding)  # [T, hidden]
    residual = None
    for layer, layer_cache in zip(weights.layers, cache, strict=True):
        x, residual = attention_block(ops, layer, x, residual, batch, layer_cache, model.cos_sin)  # [T, hidden] both
        x, residual = feed_forward(ops, layer, x, residual, model.config.activation)  # [T, hidden] both
    return ops.logits(x, residual, weights.final_norm, weights.lm_head, batch.logits_rows)  # [R, vocab]


def attention_block(
    ops: Ops, layer: LayerWeights, x: Array, residual: Array | None, batch: Batch, layer_cache: LayerCache, cos_sin: Array | None
) -> tuple[Array, Array | None]:
    """Queries, keys and values from the norm of x + residual [T, hidden]; keys and values to the cache; attention over it; the output
    projection."""
    query, residual = ops.normed_qkv(
        x, residual, layer.attention_norm, layer.qkv, layer.qkv_bias,
        batch, layer_cache, layer.attention, layer.q_norm, layer.k_norm, cos_sin,
    )  # fmt: skip  # [T, heads, head_dim], [T, hidden]
    mixed = ops.attention(query, layer_cache, batch, layer.attention)  # [T, heads * head_dim]
    return ops.linear_add(mixed, layer.attention_output, layer.attention_output_bias, residual)  # [T, hidden] both


def feed_forward(ops: Ops, layer: LayerWeights, x: Array, residual: Array | None, activation: str) -> tuple[Array, Array | None]:
    """The feed-forward of the norm of x + residual [T, hidden]: gated as in Llama, or plain as in GPT-2."""
    if layer.gate_up is not None:
        return ops.normed_gated_mlp(x, residual, layer.mlp_norm, layer.gate_up, layer.down, activation)  # [T, hidden] both
    normalised, residual = ops.add_norm(x, residual, layer.mlp_norm)  # [T, hidden] both
    return ops.mlp(normalised, layer.up, layer.up_bias, layer.down, layer.down_bias, activation), residual  # [T, hidden] both
