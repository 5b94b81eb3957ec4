"""Where a projection's queries, keys and values go: plain caches, and caches of 8-bit floats."""

import numpy as np
from ml_dtypes import finfo

from minllm.catalogue.kv.quantized import quantized_arrays, quantized_caches, smoothing_of
from minllm.kernels.kv.qkv_rope_append import qkv_rope_append_reference
from minllm.kernels.quantization.formats import kv_format
from minllm.kernels.quantization.reference import FLOAT8

PLAIN, CODED = ("key_cache", "value_cache"), ("key_codes", "value_codes")


def cache_arrays(noise, kv_heads, head_dim, k, dtype, codes, smooth):
    """Plain caches of 12 tokens of `dtype`, or the arrays of caches in the 8-bit float format `codes`, whose keys are smoothed or not.

    k: products per sum; a few of the sums lie beyond the format's largest number.
    """
    if codes is None:
        return {name: noise.array((3, 4, kv_heads, head_dim), dtype) for name in PLAIN}
    given, usual = quantized_arrays(noise, kv_format(codes, head_dim), 3, 4, kv_heads), np.float32(k**0.5)  # a usual sum
    for name in ("key_scales", "value_scales"):
        given[name] = (3 * usual / float(finfo(FLOAT8[codes]).max) * noise.random.uniform(0.5, 2, kv_heads)).astype(np.float32)
    if smooth:
        given["smoothing"] = smoothing_of(noise, kv_heads, head_dim)
        given["smoothing"][0] *= usual
    return given


def caches_of(arrays, codes):
    """(key_cache, value_cache, the other arrays) of arrays by name; QuantizedCaches if there are codes."""
    arrays = dict(arrays)
    taken = {name: arrays.pop(name) for name in (*PLAIN, *CODED, "key_scales", "value_scales", "smoothing") if name in arrays}
    caches = taken.values() if codes is None else quantized_caches(kv_format(codes, taken["key_codes"].shape[3]), taken)
    return *caches, arrays


def in_their_places(qkv, positions, slot_mapping, cos_sin, query, codes=None, **caches):
    """The queries of rows of float32 outputs, rotated, by name; keys, rotated too, and values enter the caches where a token has a slot."""
    key, value, _ = caches_of(caches, codes)
    queries = qkv_rope_append_reference(qkv, positions, slot_mapping, key, value, query.shape[1], key.shape[2], cos_sin)
    return dict(query=queries.astype(query.dtype))


def places_moved(m, heads, kv_heads, head_dim, b, threads, codes, smooth):
    """(asked, different) of the arrays of append_pair.py, if each of the threads prepares a pair."""
    number = 4 * threads
    asked = dict(positions=number, slot_mapping=number, cos_sin=2 * number, query=m * heads * head_dim * b)
    asked |= dict.fromkeys(PLAIN, m * kv_heads * head_dim * (1 if codes else b))
    different = dict(positions=4 * m, slot_mapping=4 * m, cos_sin=m * head_dim * 4)
    if codes:
        values = threads * kv_heads // (heads + 2 * kv_heads)
        asked |= dict(value_scales=4 * values, key_scales=number - 4 * values)
        different |= dict.fromkeys(("key_scales", "value_scales"), 4 * kv_heads)
    if smooth:
        asked, different = asked | dict(smoothing=4 * number), different | dict(smoothing=3 * kv_heads * head_dim * 4)
    return tuple({f"arrays.{name}": size for name, size in one.items()} for one in (asked, different))
