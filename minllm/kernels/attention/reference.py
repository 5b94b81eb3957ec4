"""Attention over a paged KV cache, in NumPy: the equation, the oracle of all kernels, and the CPU engine's attention.

For query row i of a sequence, with its visible keys k_j and values v_j:

    s_j = scale * (q_i . k_j)          p_j = exp(s_j - max_j s_j) / sum_j exp(s_j - max_j s_j)          out_i = sum_j p_j v_j

(Vaswani et al., "Attention Is All You Need", section 3.2.1; subtracting the maximum changes nothing in exact arithmetic and keeps exp
from overflowing.) Visible keys: in a sequence with C keys, Q of them new, query row i stands at position C - Q + i; it sees keys at
positions <= its own (causal), and with a sliding window only positions > its own - sliding_window. Query head h reads KV
head h // (heads // kv_heads) (grouped-query attention; Ainslie et al., arXiv 2305.13245, section 2.2).
FLOPs: 4 * heads * head_dim per visible (query, key) pair: 2 for q.k, 2 for p*v. Bytes: K and V of every visible key once per
chunk of queries, 2 * kv_heads * head_dim * itemsize per key.

The output of a row that sees no key (a padding sequence with context_lens 0) is zeros, an empty sum.
"""

import numpy as np

from minllm.kernels.quantization.cache import is_quantized

QUERY_CHUNK = 256  # query rows computed at a time: bounds the memory of scores, and a chunk skips keys after its last row


def attention_reference(query, key_cache, value_cache, query_start, context_lens, block_tables, scale, sliding_window=0, soft_cap=0.0):
    """Causal attention of a flattened batch of new tokens against a paged KV cache.

    query          [T, heads, head_dim]; float32, float16, bfloat16 or float64
    key_cache      [num_blocks, block_size, kv_heads, head_dim], or a QuantizedCache; value_cache the same
    query_start    int32 [B + 1]: sequence b owns rows query_start[b] to query_start[b + 1] of `query`
    context_lens   int32 [B]: keys visible to sequence b, including its new tokens; 0 for padding
    block_tables   int32 [B, max_blocks]: the blocks that hold the sequence's keys, block_size at a time
    scale          factor on q.k, usually 1 / sqrt(head_dim)
    sliding_window 0 for none, else the number of newest keys that each row sees, including its own
    soft_cap       0 for none, else scores become soft_cap * tanh(s / soft_cap) before the softmax (Gemma 2)

    Returns [T, heads, head_dim] in the query's dtype. Computes in float32 (in float64 for a float64 query) and rounds once, at the end.
    """
    compute_dtype = np.float64 if query.dtype == np.float64 else np.float32
    out = np.zeros(query.shape, query.dtype)
    for sequence, context_len in enumerate(np.asarray(context_lens).tolist()):
        start, stop = int(query_start[sequence]), int(query_start[sequence + 1])
        if context_len == 0 or start == stop:
            continue
        first_position = context_len - (stop - start)
        for chunk in range(start, stop, QUERY_CHUNK):
            chunk_stop = min(chunk + QUERY_CHUNK, stop)
            lowest, highest = first_position + chunk - start, first_position + chunk_stop - 1 - start  # positions of the chunk's rows
            key_start = max(0, lowest - sliding_window + 1) if sliding_window > 0 else 0
            key_stop = max(0, highest + 1)
            if key_stop <= key_start:
                continue
            keys = gather_context(key_cache, block_tables[sequence], key_start, key_stop).astype(compute_dtype, copy=False)
            values = gather_context(value_cache, block_tables[sequence], key_start, key_stop).astype(compute_dtype, copy=False)
            alone = lowest == highest  # a row alone sees all of its keys
            visible = None if alone else visible_keys(np.arange(lowest, highest + 1), np.arange(key_start, key_stop), sliding_window)
            rows = query[chunk:chunk_stop].astype(compute_dtype, copy=False)
            out[chunk:chunk_stop] = attend(rows, keys, values, scale, visible, soft_cap)
    return out


def gather_context(cache, block_table, key_start, key_stop):
    """Keys (or values) key_start to key_stop of a sequence: [keys, kv_heads, head_dim]; a view if one block holds them.

    From a quantised cache they are float32, always a copy.
    """
    if is_quantized(cache):
        return cache.read(lambda array: gather_context(array, block_table, key_start, key_stop))
    block_size = cache.shape[1]
    first_block = key_start // block_size
    last_block = (key_stop - 1) // block_size
    offset = key_start - first_block * block_size
    if first_block == last_block:
        return cache[block_table[first_block], offset : offset + key_stop - key_start]
    blocks = cache[block_table[first_block : last_block + 1]]  # [blocks, block_size, kv_heads, head_dim]
    return blocks.reshape(-1, *cache.shape[2:])[offset : offset + key_stop - key_start]


def visible_keys(query_positions, key_positions, sliding_window=0):
    """The mask [queries, keys], True for visible pairs; None if every query sees every key (one new token, no window)."""
    distance = query_positions[:, None] - key_positions[None, :]
    visible = distance >= 0
    if sliding_window > 0:
        visible &= distance < sliding_window
    return None if visible.all() else visible


def attend(query, keys, values, scale, visible=None, soft_cap=0.0):
    """softmax(scale * query keys^T) values with grouped heads: query [Q, heads, d], keys and values [N, kv_heads, d] -> [Q, heads, d]."""
    rows, heads, head_dim = query.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    grouped = query.reshape(rows, kv_heads, group, head_dim).transpose(1, 0, 2, 3).reshape(kv_heads, rows * group, head_dim)
    scores = np.matmul(grouped, keys.transpose(1, 2, 0))  # [kv_heads, rows * group, N]
    scores *= query.dtype.type(scale)
    if soft_cap:
        scores = query.dtype.type(soft_cap) * np.tanh(scores / query.dtype.type(soft_cap))
    if visible is not None:
        np.copyto(scores.reshape(kv_heads, rows, group, -1), -np.inf, where=~visible[:, None, :])
    probabilities = softmax_in_place(scores)
    out = np.matmul(probabilities, values.transpose(1, 0, 2))  # [kv_heads, rows * group, head_dim]
    return out.reshape(kv_heads, rows, group, head_dim).transpose(1, 0, 2, 3).reshape(rows, heads, head_dim)


def softmax_in_place(scores):
    """Softmax over the last axis, in place; a row in which all scores are -inf becomes zeros instead of NaN."""
    # exercise: attention.softmax
    maximum = scores.max(axis=-1, keepdims=True)
    maximum[np.isneginf(maximum)] = 0
    scores -= maximum
    np.exp(scores, out=scores)
    total = scores.sum(axis=-1, keepdims=True)
    total[total == 0] = 1
    scores /= total
    return scores
    # end exercise
