"""The fused step by norms and complex turns in float64."""

import numpy as np

from minllm.catalogue.kv import EPSILON, last_layer
from tests.kernels.normalization.oracles import rms_norm_of
from tests.kernels.rope.oracles import turned


def qkv_rope_append(shape, qkv, positions, slot_mapping, cos_sin, q_norm, k_norm, key_cache, value_cache, query):
    """Queries, and keys and values in their slots."""
    tokens, heads, head_dim = query.shape
    kv_heads = (qkv.size // tokens // head_dim - heads) // 2
    rows = qkv[int(shape["unaligned"]) :].astype(np.float64).reshape(tokens, -1, head_dim)
    queries, keys, values = np.split(rows, [heads, heads + kv_heads], axis=1)
    if q_norm is not None:
        normed = ((x, rms_norm_of(x.reshape(-1, head_dim), weight, EPSILON)) for x, weight in ((queries, q_norm), (keys, k_norm)))
        queries, keys = (found.reshape(x.shape) for x, found in normed)
    queries, keys = (turned(x, positions, shape["rotary_dim"], shape["interleaved"]) for x in (queries, keys))
    found, used = dict(query=queries), slot_mapping >= 0
    for name, cache, written in (("key_cache", key_cache, keys), ("value_cache", value_cache, values)):
        found[name] = cache.astype(np.float64)
        block, offset = np.divmod(slot_mapping[used], cache.shape[1])
        last_layer(found[name], shape["layers"])[block, offset] = written[used]
    return found
