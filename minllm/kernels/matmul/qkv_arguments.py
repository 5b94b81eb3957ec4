"""Argument checks shared by all GEMVs and GEMMs that project, rotate and append queries, keys and values."""

import numpy as np

from minllm.kernels.arguments import INDEX_DTYPES, check_array
from minllm.kernels.kv.append_pair import why_not
from minllm.kernels.kv.layout import check_caches
from minllm.kernels.kv.quantized_arguments import check_quantized_caches
from minllm.kernels.quantization.cache import is_quantized
from minllm.runtime.kernel import check


def check_qkv(x, bias, positions, slot_mapping, cos_sin, query, key_cache, value_cache, takes_codes=False) -> int:
    """The number of rows that weight must have: (heads + 2 kv_heads) * head_dim.

    Raises KernelArgumentError unless query [M, heads, head_dim], caches and bias have the dtype of x [M, hidden], positions and
    slot_mapping are int32 [M], and cos_sin is float32 [positions, head_dim]. takes_codes: whether caches may also be QuantizedCaches of
    8-bit floats.
    """
    m, dtype = x.shape[0], x.dtype
    check_array("query", query, (dtype,), tokens=m, heads=None, head_dim=None)
    _, heads, head_dim = query.shape
    if takes_codes and (is_quantized(key_cache) or is_quantized(value_cache)):
        check_quantized_caches(key_cache, value_cache, None, head_dim)
        check(why_not(key_cache, dtype) is None, why_not(key_cache, dtype))
    else:
        check_caches(key_cache, value_cache, dtype, None, head_dim)
    n = (heads + 2 * key_cache.shape[2]) * head_dim
    if bias is not None:
        check_array("bias", bias, (dtype,), rows=n)
    check_array("positions", positions, INDEX_DTYPES, tokens=m)
    check_array("slot_mapping", slot_mapping, INDEX_DTYPES, tokens=m)
    check_array("cos_sin", cos_sin, (np.dtype(np.float32),), positions=None, head_dim=head_dim)
    check(head_dim % 2 == 0, f"query has heads of {head_dim} components; RoPE rotates pairs of them, so head_dim is even")
    return n
