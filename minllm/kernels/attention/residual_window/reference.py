"""Attention over codes and recent tokens, in NumPy: defines the residual window; the oracle of its kernels.

The newest tokens stay in full precision, and older ones are codes. With groups of G tokens (TOKEN_GROUP) and a window of R, a multiple of
G, the query at position p reads the key and value at position j

    as codes           for j < L(p)              L(p) = floor(max(0, p + 1 - R) / G) * G
    in full precision  for L(p) <= j <= p

so that, in sufficiently long contexts, R to R + G - 1 keys are exact, including its own. The rule depends on the query's position, not
on when it is computed: a prompt gives the same result whole, in chunks and token by token. One softmax runs over both parts.

The recent tokens are stored in a plain paged cache with blocks of G tokens. If the first new token of a sequence has position s, this cache
holds positions from L(s) on: position j is recent position j - L(s). Because L(s) is a multiple of G, L(p) - L(s) is the rule at position
p - L(s), so a kernel that reads only recent tokens needs nothing else.
Source: Liu et al. 2024, "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache", section 3.2.
"""

import numpy as np

from minllm.kernels.attention.reference import QUERY_CHUNK, attend, gather_context
from minllm.kernels.quantization.groups import TOKEN_GROUP


def window_start(position, residual_window):
    """L(p): the first position that a query at `position` reads in full precision; for an integer or an array."""
    return np.maximum(0, position + 1 - residual_window) // TOKEN_GROUP * TOKEN_GROUP


def ring_blocks(residual_window: int) -> int:
    """Blocks that hold a window: its whole groups, and the newest group, which is incomplete."""
    return residual_window // TOKEN_GROUP + 1


def attention_with_window_reference(
    query, key_cache, value_cache, recent_key, recent_value, query_start, context_lens, block_tables, recent_lens, recent_tables,
    scale, residual_window, sliding_window=0, soft_cap=0.0,
):  # fmt: skip
    """Causal attention of new tokens over the codes of older keys and the recent keys.

    query, query_start, context_lens, block_tables, scale, sliding_window and soft_cap as in `attention_reference`; key_cache, value_cache:
    QuantizedCaches. recent_key, recent_value: [blocks, TOKEN_GROUP, kv_heads, head_dim] in the query's dtype; recent_tables: int32
    [B, max_blocks] of that cache; recent_lens: int32 [B], context_lens - L(first new position), 0 for padding.

    Returns [T, heads, head_dim] in the query's dtype. Computes in float32 (in float64 for a float64 query) and rounds once.
    """
    compute_dtype = np.float64 if query.dtype == np.float64 else np.float32
    out = np.zeros(query.shape, query.dtype)
    for sequence, context_len in enumerate(np.asarray(context_lens).tolist()):
        start, stop = int(query_start[sequence]), int(query_start[sequence + 1])
        if context_len == 0:
            continue
        table, recent_table = block_tables[sequence], recent_tables[sequence]
        recent_start = context_len - int(recent_lens[sequence])
        for chunk in range(start, stop, QUERY_CHUNK):
            rows = slice(chunk, min(chunk + QUERY_CHUNK, stop))
            positions = context_len - stop + np.arange(rows.start, rows.stop)
            starts = window_start(positions, residual_window)
            first = max(0, int(positions[0]) - sliding_window + 1) if sliding_window > 0 else 0
            coded, exact = (first, int(starts[-1])), (int(starts[0]), int(positions[-1]) + 1)
            keys, values = (
                np.concatenate([part.astype(compute_dtype) for part in parts])
                for parts in (
                    _both_parts(key_cache, recent_key, table, recent_table, coded, exact, recent_start),
                    _both_parts(value_cache, recent_value, table, recent_table, coded, exact, recent_start),
                )
            )
            visible = _visible(positions, starts, coded, exact, sliding_window)
            out[rows] = attend(query[rows].astype(compute_dtype), keys, values, scale, visible, soft_cap)
    return out


def _both_parts(cache, recent, table, recent_table, coded, exact, recent_start):
    """Keys or values at the positions `coded`, from codes, if there are any, and at `exact`, from the recent tokens."""
    parts = [gather_context(recent, recent_table, exact[0] - recent_start, exact[1] - recent_start)]
    return [gather_context(cache, table, *coded), *parts] if coded[0] < coded[1] else parts


def _visible(positions, starts, coded, exact, sliding_window):
    """The mask [queries, keys of both parts]: codes before a query's window, exact keys inside it."""
    coded, exact = np.arange(*coded), np.arange(*exact)
    visible = np.concatenate([coded < starts[:, None], (exact >= starts[:, None]) & (exact <= positions[:, None])], axis=1)
    if sliding_window > 0:
        visible &= positions[:, None] - np.concatenate([coded, exact]) < sliding_window
    return visible
