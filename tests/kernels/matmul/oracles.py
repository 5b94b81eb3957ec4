"""GEMMs in float64, and what is fused with them."""

import numpy as np

from minllm.catalogue.matmul.products import EPSILON
from tests.kernels.rope.oracles import turned


def normed(x, norm):
    """The RMSNorm of x; x itself if norm is None."""
    x = x.astype(np.float64)
    return x if norm is None else x / np.sqrt(np.square(x).mean(axis=1, keepdims=True) + EPSILON) * norm.astype(np.float64)


def product(shape, x, weight, out, bias=None, residual=None, norm=None):
    """x @ weight.T and the addends that there are."""
    addends = (array.astype(np.float64) for array in (bias, residual) if array is not None)
    return dict(out=sum(addends, normed(x, norm) @ weight.astype(np.float64).T))


def gated_product(shape, x, gate_up, out, norm=None):
    """silu of the first half of the columns times the second."""
    gate, up = np.split(normed(x, norm) @ gate_up.astype(np.float64).T, 2, axis=1)
    with np.errstate(over="ignore"):
        return dict(out=gate / (1 + np.exp(-gate)) * up)


def gemv_qkv_rope_append(shape, x, norm, weight, bias, positions, slot_mapping, cos_sin, query, key_cache, value_cache):
    """Queries and keys turned; one token after the other appended."""
    heads, kv_heads, head_dim = query.shape[1], *key_cache.shape[2:]
    qkv = (normed(x, norm) @ weight.astype(np.float64).T + (0 if bias is None else bias.astype(np.float64))).reshape(len(x), -1, head_dim)
    found = turned(qkv[:, : heads + kv_heads], positions, head_dim, False)
    caches = [cache.astype(np.float64) for cache in (key_cache, value_cache)]
    for token, slot in enumerate(slot_mapping):
        if slot >= 0:
            for cache, new in zip(caches, (found[token, heads:], qkv[token, heads + kv_heads :])):
                cache[slot // cache.shape[1], slot % cache.shape[1]] = new
    return dict(query=found[:, :heads], key_cache=caches[0], value_cache=caches[1])
