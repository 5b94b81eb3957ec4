"""The forward pass of a decoder-only transformer, the same code for every model family and every device.

    hidden = embedding of the tokens
    each layer:  hidden += attention(norm(hidden));  hidden += feed_forward(norm(hidden))
    logits = head(norm(hidden))

(Vaswani et al. 2017, section 3, in the pre-norm order of GPT-2.) `hidden` is carried as a pair (x, residual) with hidden = x + residual, or
as (x, None): each normalisation also adds the previous block's output x to the residual, which saves a pass over memory. The T tokens of
all sequences form one flat batch; only attention separates the sequences. Attention and feed-forward are in parts/.
"""

from collections.abc import Sequence
from dataclasses import replace

from minllm.models.config import ModelConfig
from minllm.models.layout import Layer, ModelWeights
from minllm.models.model import Model
from minllm.ops.batch import Array, Batch, LayerCache, NormWeights
from minllm.ops.protocol import Ops


def forward(ops: Ops, model: Model, batch: Batch, cache: Sequence[LayerCache]) -> Array:
    """The logits of the batch's wanted rows, float32 [R, vocab].

    Writes the keys and values of the batch's tokens to `cache`, which holds one LayerCache per layer.
    """
    x, residual = hidden_states(ops, model, batch, cache)
    return final_logits(ops, model, x, residual, batch)


def final_logits(ops: Ops, model: Model, x: Array, residual: Array | None, batch: Batch) -> Array:
    """The logits of the batch's wanted rows, float32 [R, vocab], from the residual stream after the last layer."""
    weights = model.weights
    return ops.logits(x, residual, weights.final_norm, weights.lm_head, batch.wanted_rows, model.config.logit_soft_cap)


def embed(ops: Ops, config: ModelConfig, weights: ModelWeights, batch: Batch) -> Array:
    """The hidden state before the first layer: [T, hidden]."""
    return ops.embed(batch, weights.embedding, weights.position_embedding, config.embedding_scale)


def hidden_states(ops: Ops, model: Model, batch: Batch, cache: Sequence[LayerCache]) -> tuple[Array, Array | None]:
    """The residual stream (x, residual), both [T, hidden], after the last layer and before the final norm."""
    weights = model.weights
    x = embed(ops, model.config, weights, batch)  # [T, hidden]
    residual, local = None, with_local_blocks(ops, batch, cache)
    next_norms = [layer.attention.norm for layer in weights.layers[1:]] + [None]
    for layer, layer_cache, next_norm in zip(weights.layers, cache, next_norms, strict=True):
        blocks = batch if layer_cache.local_of is None else local
        x, residual = decoder_layer(
            ops, layer, x, residual, batch=blocks, layer_cache=layer_cache, cos_sin=model.ropes.of(layer), next_norm=next_norm
        )  # fmt: skip
    return x, residual


def with_local_blocks(ops: Ops, batch: Batch, cache: Sequence[LayerCache]) -> Batch:
    """The batch as layers with local blocks see it; the batch itself if there are none."""
    layer = next((one for one in cache if one.local_of is not None), None)
    if layer is None:
        return batch
    slot_mapping, block_tables = ops.local_blocks(batch, layer.local_of, layer.key.shape[1])
    return replace(batch, slot_mapping=slot_mapping, block_tables=block_tables)


def decoder_layer(
    ops: Ops, layer: Layer, x: Array, residual: Array | None, *, batch: Batch, layer_cache: LayerCache, cos_sin: Array | None,
    next_norm: NormWeights | None = None,
) -> tuple[Array, Array | None]:  # fmt: skip
    """The residual stream (x, residual), both [T, hidden], after one layer.

    next_norm: the norm of the next layer's attention.
    """
    x, residual = layer.attention.forward(
        ops, x, residual, batch=batch, layer_cache=layer_cache, cos_sin=cos_sin, next_norm=layer.mlp.norm
    )  # fmt: skip
    return layer.mlp.forward(ops, x, residual, next_norm)
