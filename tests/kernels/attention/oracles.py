"""Attention in float64, row by row and head by head, from the keys that each row sees."""

import numpy as np

from minllm.catalogue.attention.trees import TREES
from minllm.catalogue.kv import last_layer
from tests.kernels.speculation.trees import path_of


def attention(shape, query, key_cache, value_cache, out, query_start, context_lens, block_tables):
    """Each row over the keys up to its own position, or over the newest of them; block by block through the table."""
    caches = [last_layer(cache, shape["layers"]) for cache in (key_cache, value_cache)]
    window, cap, right = shape["sliding_window"], shape["options"].get("soft_cap"), np.zeros(out.shape)
    for table, first, last, context in zip(block_tables, query_start, query_start[1:], context_lens, strict=False):
        for row in range(first, last):
            position = context - last + row
            seen = [i for i in range(position + 1) if not window or i > position - window]
            right[row] = weighted_values(query[row], *(at(cache, table, seen) for cache in caches), cap)
    return dict(out=right)


def tree_attention(shape, query, key_cache, value_cache, out, query_start, context_lens, block_tables, depths, words):
    """Each row over the keys before the tree and those of its node's path, or over the last of them."""
    tree, window, right = TREES[shape["tree"]], shape["sliding_window"], np.zeros(out.shape)
    for table, first, last, context in zip(block_tables, query_start, query_start[1:], context_lens, strict=False):
        before = context - (last - first) - shape["first_node"]
        for row in range(first, last):
            seen = [*range(before), *(before + node for node in path_of(tree, shape["first_node"] + row - first))]
            seen = seen[-window:] if window else seen
            right[row] = weighted_values(query[row], *(at(cache, table, seen) for cache in (key_cache, value_cache)))
    return dict(out=right)


def at(cache, table, positions):
    """The rows of a sequence at these positions: float64 [positions, kv_heads, head_dim]."""
    size = cache.shape[1]
    return np.array([cache[table[i // size], i % size] for i in positions], np.float64).reshape(-1, *cache.shape[2:])


def weighted_values(query, keys, values, cap=None):
    """The output of one row [heads, head_dim]: softmax(q k / sqrt(head_dim)) v, zeros without keys; cap: of the scores."""
    out, group = np.zeros(query.shape), len(query) // keys.shape[1]
    for head in range(len(query) if len(keys) else 0):
        scores = keys[:, head // group] @ query[head].astype(np.float64) / np.sqrt(query.shape[1])
        scores = cap * np.tanh(scores / cap) if cap else scores
        weights = np.exp(scores - scores.max())
        out[head] = weights @ values[:, head // group] / weights.sum()
    return out
