"""The forward pass of a decoder-only transformer, once for every family and every machine.

    hidden = embedding of the tokens
    each layer:  hidden += output(attention(norm(hidden)));  hidden += feed_forward(norm(hidden))
    logits = head(norm(hidden))

(Vaswani et al. 2017, section 3, in the pre-norm order of GPT-2.) `hidden` is carried as a pair (x, residual) whose sum it is: each
normalisation adds the last block's output x to the residual in the same step, which saves a pass over memory. T tokens of all
sequences lie in one flat batch; only attention knows which belong together.
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
        x, residual = ops.add_norm(x, residual, layer.attention_norm)  # [T, hidden] both
        x = attention_block(ops, layer, x, batch, layer_cache, model.cos_sin)  # [T, hidden]
        x, residual = ops.add_norm(x, residual, layer.mlp_norm)  # [T, hidden] both
        x = feed_forward(ops, layer, x, model.config.activation)  # [T, hidden]
    return ops.logits(x, residual, weights.final_norm, weights.lm_head, batch.logits_rows)  # [R, vocab]


def attention_block(ops: Ops, layer: LayerWeights, x: Array, batch: Batch, layer_cache: LayerCache, cos_sin: Array | None) -> Array:
    """Queries, keys and values from x [T, hidden]; keys and values to the cache; attention over it; the output projection."""
    qkv = ops.linear(x, layer.qkv, layer.qkv_bias)  # [T, (heads + 2 * kv_heads) * head_dim]
    query = ops.qkv_rope_append(qkv, batch, layer_cache, layer.attention, layer.q_norm, layer.k_norm, cos_sin)  # [T, heads, head_dim]
    mixed = ops.attention(query, layer_cache, batch, layer.attention)  # [T, heads * head_dim]
    return ops.linear(mixed, layer.attention_output, layer.attention_output_bias)  # [T, hidden]


def feed_forward(ops: Ops, layer: LayerWeights, x: Array, activation: str) -> Array:
    """The feed-forward of x [T, hidden]: gated as in Llama, or plain as in GPT-2."""
    if layer.gate_up is not None:
        return ops.gated_mlp(x, layer.gate_up, layer.down, activation)  # [T, hidden]
    return ops.mlp(x, layer.up, layer.up_bias, layer.down, layer.down_bias, activation)  # [T, hidden]
