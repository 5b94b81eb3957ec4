"""Attention in float64, row by row, from the keys that each row sees."""

import numpy as np

from minllm.catalogue.attention.quantized import FLOAT8_WEIGHTS, FLOAT8_WEIGHTS_RMS
from minllm.catalogue.attention.trees import TREES
from minllm.catalogue.kv.plain import last_layer
from minllm.catalogue.kv.quantized import quantized_caches
from minllm.kernels.quantization.formats import kv_format
from tests.kernels.speculation.trees import path_of


def attention(shape, query, key_cache, value_cache, out, query_start, context_lens, block_tables):
    """Each row over the keys up to its own position, or over the newest of them; block by block through the table."""
    caches = [last_layer(cache, shape["layers"]) for cache in (key_cache, value_cache)]
    cap, right = shape["options"].get("soft_cap"), np.zeros(out.shape)
    for row, position, table in rows_of(query_start, context_lens, block_tables):
        seen = np.arange(first_seen(position, shape["sliding_window"]), position + 1)
        right[row] = weighted_values(query[row], *(at(cache, table, seen) for cache in caches), cap)
    return dict(out=right)


def quantized_attention(shape, query, out, query_start, context_lens, block_tables, **codes):
    """The same over what the codes mean; with a residual window over the keys before it.

    Queries and weights that are rounded to fp8 are each off by a 16th at most: such results agree with the reference, which has the same
    roundings, and roughly with what is right.
    """
    caches, right = meaning(shape, codes), np.zeros(out.shape)
    for row, position, table in rows_of(query_start, context_lens, block_tables):
        stop = window_of(position, shape["residual_window"]) if shape["residual_window"] else position + 1
        seen = np.arange(first_seen(position, shape["sliding_window"]), stop)
        right[row] = weighted_values(query[row], *(at(cache, table, seen) for cache in caches))
    return dict(out=nearly(right, shape["magnitude"]) if shape["variant"] == "flash_attention_3_float8" else right)


def nearly(right, magnitude):
    """A comparison with the reference, and with `right`: where scores are large, the rounding of one decides which key has the weight."""

    def compare(results, expected):
        found, reference = (one["out"].astype(np.float64) for one in (results, expected))
        largest, moved = np.abs(right).max(), found - reference
        assert np.isfinite(found).all() and np.sqrt(np.mean(moved**2)) <= (FLOAT8_WEIGHTS_RMS if magnitude == 1 else 2.0**-5) * largest
        if magnitude == 1:
            assert np.abs(moved).max() <= FLOAT8_WEIGHTS * largest
            assert np.sqrt(np.mean((found - right) ** 2)) <= 2.0**-5 * largest
            assert np.abs(found - right).max() <= 2.0**-3 * largest

    return compare


def residual_window(
    shape, query, recent_key, recent_value, out, query_start, context_lens, block_tables, recent_lens, recent_tables, **codes
):
    """The same over codes before the window of each row, and over recent keys within it; these begin with the window of the first row."""
    right, recents = np.zeros(out.shape), (recent_key, recent_value)
    sequences = np.repeat(np.arange(len(context_lens)), np.diff(query_start))
    for row, position, table in rows_of(query_start, context_lens, block_tables):
        sequence = sequences[row]
        border, base = window_of(position, shape["window"]), context_lens[sequence] - recent_lens[sequence]
        first = first_seen(position, shape["sliding_window"])
        coded, exact = np.arange(first, border), np.arange(max(first, border), position + 1) - base
        parts = zip(meaning(shape, codes), recents, strict=True)
        caches = (np.concatenate([at(old, table, coded), at(new, recent_tables[sequence], exact)]) for old, new in parts)
        right[row] = weighted_values(query[row], *caches)
    return dict(out=right)


def tree_attention(shape, query, key_cache, value_cache, out, query_start, context_lens, block_tables, depths, words):
    """Each row over the keys before the tree and those of its node's path, or over the last of them."""
    tree, window, right = TREES[shape["tree"]], shape["sliding_window"], np.zeros(out.shape)
    for table, first, last, context in zip(block_tables, query_start, query_start[1:], context_lens, strict=False):
        before = context - (last - first) - shape["first_node"]
        for row in range(first, last):
            path = path_of(tree, shape["first_node"] + row - first)
            seen = np.array([*range(before), *(before + node for node in path)])[-window:]
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


def rows_of(query_start, context_lens, block_tables):
    """(row, its position, the table of its sequence) of all rows; positions of padding, and before the first key, are negative."""
    for table, first, last, context in zip(block_tables, query_start, query_start[1:], context_lens, strict=False):
        for row in range(first, last):
            yield row, context - last + row, table


def first_seen(position, sliding_window):
    """The first position that a row sees."""
    return max(0, position - sliding_window + 1) if sliding_window else 0


def window_of(position, residual_window):
    """The first position that a row reads as it is: that of a whole group of 32."""
    return max(0, position + 1 - residual_window) // 32 * 32


def meaning(shape, codes):
    """Keys and values that codes mean [num_blocks, block_size, kv_heads, head_dim]: float32, or float16 if the kernel rounds to it."""
    found = kv_format(shape["form"], shape["head_dim"], shape.get("group_size"))
    rounds = shape.get("variant") == "flash_attention_2_quantized" and not found.is_float
    with np.errstate(invalid="ignore"):  # poison
        read = [cache.read(lambda array: array) for cache in quantized_caches(found, codes, found.keys_by_channel)]
        return [one.astype(np.float16) for one in read] if rounds else read


def at(cache, table, positions):
    """The rows of a sequence at these positions: float64 [positions, kv_heads, head_dim]."""
    return cache[table[positions // cache.shape[1]], positions % cache.shape[1]].astype(np.float64)


def weighted_values(query, keys, values, cap=None):
    """The output of one row [heads, head_dim]: softmax(q k / sqrt(head_dim)) v, zeros without keys; cap: of the scores."""
    out, group = np.zeros(query.shape), len(query) // keys.shape[1]
    for kv_head in range(keys.shape[1] if len(keys) else 0):
        heads = slice(kv_head * group, (kv_head + 1) * group)
        scores = query[heads].astype(np.float64) @ keys[:, kv_head].T / np.sqrt(query.shape[1])
        scores = cap * np.tanh(scores / cap) if cap else scores
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[heads] = weights @ values[:, kv_head] / weights.sum(axis=1, keepdims=True)
    return out
