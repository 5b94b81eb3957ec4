"""One step from the fused QKV projection to attention: split, QK norm, RoPE, and the append to the cache."""

import numpy as np

from minllm.kernels.kv.append import append_reference
from minllm.kernels.normalization.rms_norm import rms_norm_reference
from minllm.kernels.rope.rotate import rope_reference


def qkv_rope_append_reference(
    qkv, positions, slot_mapping, key_cache, value_cache, heads, kv_heads,
    cos_sin=None, interleaved=False, q_norm=None, k_norm=None, epsilon=1e-6,
):
    """Split qkv, normalise and turn its queries and keys, write keys and values into the cache, return the queries.

    qkv: [T, (heads + 2 * kv_heads) * head_dim], queries first, then keys, then values. q_norm, k_norm: [head_dim] weights of an RMSNorm
    over each head (Qwen3), or None. cos_sin: see `rope_table`; None leaves positions out (GPT-2). Caches and slots as in
    `append_reference`. Everything between load and store is float32, and rounded once. Returns the queries, [T, heads, head_dim], in the
    dtype of qkv.
    """
    tokens = qkv.shape[0]
    by_head = qkv.reshape(tokens, heads + 2 * kv_heads, -1)  # [T, heads + 2 * kv_heads, head_dim]
    wide = np.result_type(qkv.dtype, np.float32)
    query, key = by_head[:, :heads].astype(wide, copy=False), by_head[:, heads : heads + kv_heads].astype(wide, copy=False)
    if q_norm is not None:
        query, _ = rms_norm_reference(query, q_norm, epsilon)
    if k_norm is not None:
        key, _ = rms_norm_reference(key, k_norm, epsilon)
    if cos_sin is not None:
        query, key = rope_reference(query, positions, cos_sin, interleaved), rope_reference(key, positions, cos_sin, interleaved)
    append_reference(key, by_head[:, heads + kv_heads :], key_cache, value_cache, slot_mapping)
    return query.astype(qkv.dtype, copy=False)
