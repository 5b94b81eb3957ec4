"""Attention in float64, row by row."""

import numpy as np

from minllm.catalogue.kv import last_layer


def attention(shape, query, key_cache, value_cache, out, query_start, context_lens, block_tables):
    """Each row over the keys up to its own position, or over the newest of them; block by block through the table."""
    group, size, right = shape["heads"] // shape["kv_heads"], shape["block_size"], np.zeros(out.shape)
    keys, values = (last_layer(cache, shape["layers"]) for cache in (key_cache, value_cache))
    for table, first, last, context in zip(block_tables, query_start, query_start[1:], context_lens, strict=False):
        for row in range(first, last):
            position = context - last + row
            seen = [i for i in range(position + 1) if not shape["sliding_window"] or i > position - shape["sliding_window"]]
            for head in range(shape["heads"] if seen else 0):
                k, v = (np.float64([cache[table[i // size], i % size, head // group] for i in seen]) for cache in (keys, values))
                scores = k @ query[row, head].astype(np.float64) / np.sqrt(shape["head_dim"])
                weights = np.exp(scores - scores.max())
                right[row, head] = weights @ v / weights.sum()
    return dict(out=right)
