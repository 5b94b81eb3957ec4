"""Rotate one pair of components and append it to the cache: the epilogue of GEMVs that project queries, keys and values.

    a, b = a cos - b sin, b cos + a sin                      queries and keys; values stay unchanged
    key_cache[slot], value_cache[slot] = a, b                query = a, b
    codes = fp8((k - mean) * factor / scale), fp8(v / scale)         query = q / factor                 in a cache of 8-bit floats

RoPE rotates component d of a head against component d + D / 2. A GEMV has such pairs, but no warp has a whole head. That suffices for a
plain cache, and for one of 8-bit floats: their scale is a constant of the KV head, so each component becomes a code by itself. The scale of
an integer format follows from all components of its group; `why_not` refuses it, and qkv_rope_append_quantized.py serves it.

`prepare` issues the loads for a pair before its sums are done and waits for none of them; `write` converts, rotates and stores.
Sources: those of qkv_rope_append.py and quantized_head.py.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, float32, int32, uint8, uint32

from minllm.kernels.kv.layout import by_slot
from minllm.kernels.kv.quantized_head import pack_pair_of
from minllm.kernels.quantization.cache import is_quantized
from minllm.kernels.quantization.formats import KvFormat
from minllm.ptx import rcp_rn
from minllm.runtime.array_protocol import Array


class Attention(NamedTuple):
    """The arrays of M tokens that a projection ends in.

    bias: [N] or None. positions, slot_mapping: [M]. cos_sin: [positions, head_dim]. query: [M, heads, head_dim]. Caches: plain ones
    [slots, kv_heads, head_dim], or codes [num_blocks, kv_heads, block_size, head_dim] with scales [kv_heads] and smoothing
    [3, kv_heads, head_dim] (see QuantizedCache), which are None otherwise.
    """

    bias: Array | None
    positions: Array
    slot_mapping: Array
    cos_sin: Array
    query: Array
    key_cache: Array
    value_cache: Array
    key_scales: Array | None = None
    value_scales: Array | None = None
    smoothing: Array | None = None


class AttentionForm(NamedTuple):
    """What a kernel must know of these arrays when it is compiled.

    kv_format: of caches of 8-bit floats, or None. The rest is theirs; sharers: query heads per KV head.
    """

    head_dim: int
    has_bias: bool
    kv_format: KvFormat | None = None
    block_size: int = 0
    sharers: int = 1
    is_smooth: bool = False


class Pair(NamedTuple):
    """A pair's slot and its other inputs, unconverted, so that nothing waits for their loads yet."""

    slot: int
    cosine: float
    sine: float
    low_bias: float
    high_bias: float
    scale: float
    low_mean: float
    high_mean: float
    low_factor: float
    high_factor: float


def why_not(key_cache: Any, dtype) -> str | None:
    """Why a GEMV with activations of `dtype` cannot append to a cache like key_cache; None if it can."""
    if not is_quantized(key_cache):
        return None if getattr(key_cache, "dtype", None) == dtype else f"a plain cache has the dtype of the activations, {dtype}"
    if key_cache.format.is_float:
        return None
    return f"a scale of {key_cache.format.name} is that of a group of components, and a warp of a GEMV has only pairs: project, then append"


def attention_of(bias, positions, slot_mapping, cos_sin, query, key_cache, value_cache) -> tuple[Attention, AttentionForm]:
    """The kernel's arrays and their form; the caches are plain arrays [num_blocks, block_size, ...] or QuantizedCaches of 8-bit floats."""
    given, head_dim, has_bias = (bias, positions, slot_mapping, cos_sin, query), query.shape[2], bias is not None
    if not is_quantized(key_cache):
        return Attention(*given, by_slot(key_cache), by_slot(value_cache)), AttentionForm(head_dim, has_bias)
    (_, block_size, kv_heads, _), smoothing = key_cache.shape, key_cache.smoothing
    sharers = query.shape[1] // max(1, kv_heads)
    form = AttentionForm(head_dim, has_bias, key_cache.format, block_size, sharers, smoothing is not None)
    return Attention(*given, key_cache.codes, value_cache.codes, key_cache.scales, value_cache.scales, smoothing), form


@functools.cache
def make_append_pair(form: AttentionForm):
    """The device functions prepare(arrays, position, slot, pair) -> Pair, and write(arrays, prepared, m, pair, low, high).

    Pairs are counted through all heads: queries, keys, values. prepare: a pair past the last repeats that one. write: low and high are the
    sums of the pair for row m of x; a slot below 0 writes no key and no value.
    """
    head_dim, has_bias, kv_format, block_size, sharers, is_smooth = form
    half, has_codes = head_dim // 2, kv_format is not None
    pack_pair = pack_pair_of(kv_format) if kv_format else None

    @cuda.jit(device=True, forceinline=True)
    def bias_of(arrays, row):
        return arrays.bias[uint32(row)] if has_bias else float32(0)

    @cuda.jit(device=True, forceinline=True)
    def scale_of(arrays, is_value, kv_head):
        if not has_codes:
            return float32(1)
        return arrays.value_scales[kv_head] if is_value else arrays.key_scales[kv_head]

    @cuda.jit(device=True, forceinline=True)
    def smoothing_of(arrays, part, kv_head, component):
        return arrays.smoothing[uint32(part), kv_head, component] if is_smooth else float32(0)

    @cuda.jit(device=True, forceinline=True)
    def place_of(arrays, pair):
        """(head, its KV head if it is a key or value, the pair's lower component, whether it is a query, whether it is a value)."""
        heads, kv_heads = uint32(arrays.query.shape[1]), uint32(arrays.key_cache.shape[1])
        head, component = uint32(uint32(pair) // uint32(half)), uint32(uint32(pair) % uint32(half))
        is_query, is_value = head < heads, head >= heads + kv_heads
        kv_head = (head - heads - (kv_heads if is_value else uint32(0))) & uint32(0xFFFFFFFF)  # below 0, and not read, if it is a query
        return head, uint32(kv_head), component, is_query, is_value

    @cuda.jit(device=True, forceinline=True)
    def prepare(arrays, position, slot, pair):
        last = int32((arrays.query.shape[1] + 2 * arrays.key_cache.shape[1]) * half - 1)
        head, kv_head, low, is_query, is_value = place_of(arrays, min(int32(pair), last))
        high, row = uint32(low + uint32(half)), uint32(head * uint32(head_dim) + low)
        if is_query:
            kv_head = uint32(head // uint32(sharers))
        part = 2 if is_query else 1  # queries are multiplied by the inverse of the keys' factor
        return Pair(
            int32(slot), arrays.cos_sin[position, low], arrays.cos_sin[position, high],
            bias_of(arrays, row), bias_of(arrays, row + uint32(half)), scale_of(arrays, is_value, kv_head),
            smoothing_of(arrays, 0, kv_head, low), smoothing_of(arrays, 0, kv_head, high),
            smoothing_of(arrays, part, kv_head, low), smoothing_of(arrays, part, kv_head, high),
        )  # fmt: skip

    @cuda.jit(device=True, forceinline=True)
    def store(cache, prepared, kv_head, low, a, b):
        """Store a pair of a key or value, from component `low` on, as it is or as codes."""
        slot, high = uint32(prepared.slot), uint32(low + uint32(half))
        if has_codes:
            inverse = rcp_rn(prepared.scale)
            codes, block, offset = pack_pair(a * inverse, b * inverse), slot // uint32(block_size), slot % uint32(block_size)
            cache[block, kv_head, offset, low] = uint8(codes & uint32(0xFF))
            cache[block, kv_head, offset, high] = uint8(codes >> uint32(8))
        else:
            cache[slot, kv_head, low], cache[slot, kv_head, high] = a, b

    @cuda.jit(device=True, forceinline=True)
    def write(arrays, prepared, m, pair, low, high):
        head, kv_head, component, is_query, is_value = place_of(arrays, pair)
        a, b = low + float32(prepared.low_bias), high + float32(prepared.high_bias)
        if not is_value:
            a, b = a * prepared.cosine - b * prepared.sine, b * prepared.cosine + a * prepared.sine
            if is_smooth:
                if not is_query:
                    a, b = a - prepared.low_mean, b - prepared.high_mean
                a, b = a * prepared.low_factor, b * prepared.high_factor
        if is_query:
            arrays.query[m, head, component] = a
            arrays.query[m, head, uint32(component + uint32(half))] = b
        elif prepared.slot >= 0:
            if is_value:
                store(arrays.value_cache, prepared, kv_head, component, a, b)
            else:
                store(arrays.key_cache, prepared, kv_head, component, a, b)

    return prepare, write
