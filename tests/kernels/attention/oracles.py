"""Attention in float64, row by row and head by head, from the keys that each row sees."""

import numpy as np

from minllm.catalogue.attention.trees import TREES
from minllm.catalogue.kv import last_layer, quantized_caches
from minllm.kernels.quantization.formats import kv_format
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


def quantized_attention(shape, query, out, query_start, context_lens, block_tables, **arrays):
    """Each row over the keys up to its own position, or over those that it reads as codes."""
    caches, window, right = meant(shape, arrays), shape["residual_window"], np.zeros(out.shape)
    for table, first, last, context in zip(block_tables, query_start, query_start[1:], context_lens, strict=False):
        for row in range(first, last):
            position = context - last + row
            seen = range(exact_from(position, window) if window else position + 1)
            right[row] = weighted_values(query[row], *(at(cache, table, seen) for cache in caches))
    return dict(out=right)


def residual_window(shape, query, recent_key, recent_value, out, query_start, context_lens, block_tables, recent_tables, **arrays):
    """Each row over the codes of older keys and the recent keys as they are."""
    parts = list(zip(meant(shape, arrays), (recent_key, recent_value), strict=True))
    window, sliding, right = shape["window"], shape["sliding_window"], np.zeros(out.shape)
    for b, context in enumerate(context_lens):
        first, last = query_start[b : b + 2]
        base = exact_from(context - (last - first), window)  # the first position in the cache of recent keys
        for row in range(first, last):
            position = context - last + row
            start, border = max(0, position + 1 - sliding) if sliding else 0, exact_from(position, window)
            exact = [i - base for i in range(max(start, border), position + 1)]
            seen = (
                np.concatenate([at(codes, block_tables[b], range(start, border)), at(own, recent_tables[b], exact)]) for codes, own in parts
            )
            right[row] = weighted_values(query[row], *seen)
    return dict(out=right)


def exact_from(position, window):
    """The first key that the row at a position reads as it is: groups of 32 before its window are codes."""
    return max(0, position + 1 - window) // 32 * 32


def meant(shape, arrays):
    """The numbers that the caches of codes stand for."""
    found = kv_format(shape["form"], shape["head_dim"], shape.get("group_size"))
    return [cache.read(lambda array: array) for cache in quantized_caches(found, arrays, found.keys_by_channel)]


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


def merge_states(shape, first, first_lse, second, second_lse, query_start, out=None):
    """Both parts by their shares of the sum of all weights."""
    place, used = shape["place"], query_start[-1]
    right = dict(first=first, second=second, out=out)[place].astype(np.float64)
    with np.errstate(invalid="ignore"):  # neither part has keys
        both = np.logaddexp2(first_lse, second_lse, dtype=np.float64)
        shares = [np.nan_to_num(np.exp2(lse - both)) for lse in (first_lse, second_lse)]
    merged = sum(share[..., None] * part.astype(np.float64) for share, part in zip(shares, (first, second), strict=True))
    right[:used] = merged[:used]
    return {place: right}


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
