"""Attention over fp8 codes with the roundings of float8.py, in the same order, in NumPy."""

import ml_dtypes
import numpy as np

from minllm.kernels.attention.common.arguments import LOG2_E
from minllm.kernels.attention.flash_attention_3.float8_rows import EXPONENT, GROWTH, OFFSET

CODES = ml_dtypes.float8_e4m3fn


def quantize_queries(query):
    """(codes, scales) of queries [..., head_dim]: e4m3, and float32 [...], powers of two."""
    largest = np.abs(query.astype(np.float32)).max(axis=-1)
    exponent = np.maximum(np.frexp(largest)[1] - 1 - EXPONENT, 1 - 127)  # the largest number is 2 ** (EXPONENT + exponent) or above
    exponent = np.where(largest > 0, exponent, 1 - 127)
    return np.ldexp(query.astype(np.float32), -exponent[..., None]).astype(CODES), np.ldexp(np.float32(1), exponent)


def attend(query, keys, values, scale, position, key_tile, sliding_window=0):
    """A row of the heads of one KV head over the keys up to its position, in the kernel's steps: float32 [group, head_dim].

    query [group, head_dim], keys and values [keys, head_dim]: codes. scale [group]: with log2(e) and those of queries and keys.
    """
    rows, keys, values = (codes.astype(np.float32) for codes in (query, keys, values))
    first = max(0, position - sliding_window + 1) if sliding_window else 0
    maximum, total, out = np.full(len(rows), -np.inf, np.float32), np.zeros(len(rows), np.float32), np.zeros(rows.shape, np.float32)
    for tile in range(position // key_tile, first // key_tile - 1, -1):
        seen = slice(max(first, tile * key_tile), min(position + 1, (tile + 1) * key_tile))
        scores = rows @ keys[seen].T
        highest = np.maximum(maximum, scores.max(axis=-1))
        raised = np.where(highest * scale <= maximum * scale + np.float32(GROWTH), maximum, highest)
        factor, maximum = np.exp2((maximum - raised) * scale), raised
        weights = np.exp2(scores * scale[:, None] - (maximum * scale - np.float32(OFFSET))[:, None])
        total = total * factor + weights.sum(axis=-1)
        out = out * factor[:, None] + weights.astype(CODES).astype(np.float32) @ values[seen]
    return out / total[:, None]


def float8_reference(query, key_cache, value_cache, query_start, context_lens, block_tables, scale, sliding_window=0, key_tile=128):
    """Attention over QuantizedCaches in fp8_e4m3 with the kernel's roundings; arguments and result as attention_reference's."""
    codes, scales = quantize_queries(query)
    out, group = np.zeros(query.shape, query.dtype), query.shape[1] // key_cache.shape[2]
    caches = [cache.codes.view(CODES) for cache in (key_cache, value_cache)]  # [num_blocks, kv_heads, block_size, head_dim]
    for sequence, context_len in enumerate(np.asarray(context_lens).tolist()):
        start, stop = int(query_start[sequence]), int(query_start[sequence + 1])
        blocks = block_tables[sequence][: -(-context_len // key_cache.shape[1])]
        for kv_head in range(key_cache.shape[2] if context_len else 0):
            heads = slice(kv_head * group, (kv_head + 1) * group)
            keys, values = (cache[blocks, kv_head].reshape(-1, cache.shape[-1]) for cache in caches)
            for token in range(max(start, stop - context_len), stop):
                factors = np.float32(scale * LOG2_E) * key_cache.scales[kv_head] * scales[token, heads]
                position = context_len - stop + token
                attended = attend(codes[token, heads], keys, values, factors, position, key_tile, sliding_window)
                out[token, heads] = attended * value_cache.scales[kv_head]
    return out
