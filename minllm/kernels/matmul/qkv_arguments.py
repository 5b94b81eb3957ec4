"""Argument checks shared by all GEMVs and GEMMs that project, rotate and append queries, keys and values."""

import numpy as np

from minllm.kernels.arguments import INDEX_DTYPES, check_array
from minllm.kernels.kv.layout import check_caches
from minllm.runtime.kernel import check


def check_qkv(x, bias, positions, slot_mapping, cos_sin, query, key_cache, value_cache) -> int:
    """The number of rows that weight must have: (heads + 2 kv_heads) * head_dim.

    Raises KernelArgumentError unless query [M, heads, head_dim], caches and bias have the dtype of x [M, hidden], positions and
    slot_mapping are int32 [M], and cos_sin is float32 [positions, head_dim].
    """
    m, dtype = x.shape[0], x.dtype
    check_array("query", query, (dtype,), tokens=m, heads=None, head_dim=None)
    _, heads, head_dim = query.shape
    check_caches(key_cache, value_cache, dtype, None, head_dim)
    n = (heads + 2 * key_cache.shape[2]) * head_dim
    if bias is not None:
        check_array("bias", bias, (dtype,), rows=n)
    check_array("positions", positions, INDEX_DTYPES, tokens=m)
    check_array("slot_mapping", slot_mapping, INDEX_DTYPES, tokens=m)
    check_array("cos_sin", cos_sin, (np.dtype(np.float32),), positions=None, head_dim=head_dim)
    check(head_dim % 2 == 0, f"query has heads of {head_dim} components; RoPE rotates pairs of them, so head_dim is even")
    return n
