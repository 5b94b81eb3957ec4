"""The transformer: token ids in, logits out. It is Llama's, with the biases of Qwen2 and the normalised heads of Qwen3.

    x = embedding(token ids)
    for each layer:
        q, k, v = norm(x) Wq, norm(x) Wk, norm(x) Wv       q and k rotated by their positions; k and v go into the cache
        x += softmax(scale * q K) V Wo                     K, V: all cached keys and values of the row's sequence, up to its own position
        x += (silu(norm(x) Wgate) * norm(x) Wup) Wdown
    logits = norm(x) Whead                                 of each sequence's last row

All sequences of a step are rows of one batch; only attention looks at which row belongs to whom.
Source: Touvron et al. 2023, "LLaMA: Open and Efficient Foundation Language Models".
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minllm.models.config import ModelConfig
from minllm.nano.scheduler import Step
from minllm.nano.weights import Layer, Weights
from minllm.runtime.array_protocol import Array


@dataclass
class Batch:
    """The arrays of a step of T tokens of S sequences, int32."""

    token_ids: Array  # [T]
    positions: Array  # [T]
    slot_mapping: Array  # [T]: where the token's key and value are written, block * block_size + offset
    query_start: Array  # [S + 1]: sequence s has the rows query_start[s] to query_start[s + 1]
    context_lens: Array  # [S]: its keys, those of this step included
    block_tables: Array  # [S, most blocks]
    last_rows: Array  # [R]: the rows from which a token is sampled


def make_batch(step: Step, block_size: int) -> Batch:
    """The arrays of a step, on the host."""
    starts = [sequence.num_computed_tokens for sequence, _ in step]
    stops = [start + count for start, (_, count) in zip(starts, step, strict=True)]
    positions = [np.arange(start, stop) for start, stop in zip(starts, stops, strict=True)]
    token_ids = [token for (sequence, _), start, stop in zip(step, starts, stops, strict=True) for token in sequence.token_ids[start:stop]]
    tables = np.zeros((len(step), max(len(sequence.block_table) for sequence, _ in step)), np.int32)
    for row, (sequence, _) in zip(tables, step, strict=True):
        row[: len(sequence.block_table)] = sequence.block_table
    slots = [table[at // block_size] * block_size + at % block_size for table, at in zip(tables, positions, strict=True)]
    query_start = np.cumsum([0, *(count for _, count in step)])
    last = [query_start[i + 1] - 1 for i, (sequence, _) in enumerate(step) if stops[i] == sequence.num_tokens]
    arrays = token_ids, np.concatenate(positions), np.concatenate(slots), query_start, stops, tables, last
    return Batch(*(np.asarray(array, np.int32) for array in arrays))


def forward(ops: Any, weights: Weights, config: ModelConfig, batch: Batch, caches: list[tuple[Any, Any]]) -> Any:
    """The logits of batch.last_rows: float32 [R, vocab_size]. caches: keys and values of each layer, written in place."""
    x, change = ops.embedding(batch.token_ids, weights.embedding), None  # [T, hidden]: x waits for `change` to be added
    for index, (layer, cache) in enumerate(zip(weights.layers, caches, strict=True)):
        normed = ops.add_norm(x, change, layer.attention_norm, config.norm_epsilon)
        change = attention(ops, layer, config, index, normed, weights.cos_sin, batch, cache)
        normed = ops.add_norm(x, change, layer.mlp_norm, config.norm_epsilon)
        change = ops.matmul(ops.silu_and_multiply(ops.matmul(normed, layer.gate_up)), layer.down)
    normed = ops.add_norm(x, change, weights.norm, config.norm_epsilon)
    return ops.matmul(ops.embedding(batch.last_rows, normed), weights.head, out_dtype=np.float32)  # an embedding is a choice of rows


def attention(ops: Any, layer: Layer, config: ModelConfig, index: int, x: Array, cos_sin: Array, batch: Batch, cache: tuple[Array, Array]
) -> Any:  # fmt: skip
    """One layer's attention over `x` [T, hidden], its norm applied: [T, hidden]."""
    heads, kv_heads, tokens = config.num_attention_heads, config.num_key_value_heads, x.shape[0]
    query = ops.matmul(x, layer.query, layer.query_bias).reshape(tokens, heads, config.head_dim)
    key = ops.matmul(x, layer.key, layer.key_bias).reshape(tokens, kv_heads, config.head_dim)
    value = ops.matmul(x, layer.value, layer.value_bias).reshape(tokens, kv_heads, config.head_dim)
    if config.qk_norm:
        query, key = norm_heads(ops, query, layer.query_norm, config), norm_heads(ops, key, layer.key_norm, config)
    query, key = ops.rope(query, batch.positions, cos_sin), ops.rope(key, batch.positions, cos_sin)
    ops.append(key, value, *cache, batch.slot_mapping)
    whose = batch.query_start, batch.context_lens, batch.block_tables
    mixed = ops.attention(query, *cache, *whose, config.attention_scales[index], config.sliding_windows[index])
    return ops.matmul(mixed.reshape(tokens, heads * config.head_dim), layer.output, layer.output_bias)


def norm_heads(ops: Any, x: Array, weight: Array, config: ModelConfig) -> Any:
    """The RMS norm of each head: x [T, heads, head_dim]."""
    tokens, heads, head_dim = x.shape
    return ops.add_norm(x.reshape(tokens * heads, head_dim), None, weight, config.norm_epsilon).reshape(tokens, heads, head_dim)
