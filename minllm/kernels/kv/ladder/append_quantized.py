"""Append keys and values to a quantised cache: read once, quantised in registers, written as codes and scales.

    x = (key[t, h] - mean[h]) * factor[h]  or  value[t, h]
    codes, scales of block slot // block_size, position slot % block_size = quantize(x)

T tokens of H heads of D components of b bytes: about 6 FLOPs per element; 2 T H D b bytes read and 2 T H bytes_per_head written
(formats.py), D + 4 per head for int8, compared with 2 D for a plain copy; arithmetic intensity about 2 FLOPs per byte, so it is
memory-bound. A separate quantisation kernel would write the numbers once more and read them back.

Threads to data: see quantized_head.py; a block takes some heads of one token, and its z index selects keys or values.
Source: LMDeploy, "INT4/INT8 KV Cache"; Zhang et al. 2024, "SageAttention", section 4.2 (the mean).
"""

import functools

from numba import cuda, float32, uint32

from minllm.kernels.arguments import FLOAT_DTYPES, INDEX_DTYPES, ceil_div, check_array
from minllm.kernels.kv.quantized_arguments import check_aligned, check_by_token, check_quantized_caches
from minllm.kernels.kv.quantized_head import lanes_of, make_store_quantized, smooth
from minllm.kernels.quantization.lanes import EACH, make_load_each
from minllm.runtime.kernel import kernel, launch

THREADS = 128


@functools.cache
def append_quantized_kernel(dtype, kv_format, block_size, is_smooth):
    """The kernel for numbers of `dtype` and caches of `kv_format`; grid (tokens, blocks of heads, keys and values)."""
    head_dim, lanes = kv_format.head_dim, lanes_of(kv_format.head_dim)
    last = head_dim // EACH - 1
    load_components, store_quantized = make_load_each(dtype), make_store_quantized(kv_format, block_size)

    @kernel
    def append_quantized_kernel(key, value, key_codes, key_scales, smoothing, value_codes, value_scales, slot_mapping):
        # key, value [T, kv_heads, head_dim]; codes, scales: QuantizedCache's; smoothing [3, kv_heads, head_dim]; slot_mapping [T]
        token, kv_heads = cuda.blockIdx.x, key.shape[1]
        lane, head = cuda.threadIdx.x % uint32(lanes), cuda.blockIdx.y * (THREADS // lanes) + cuda.threadIdx.x // uint32(lanes)
        slot = slot_mapping[token]
        values = cuda.local.array(EACH, float32)
        component, is_key, is_written = min(lane, uint32(last)) * EACH, cuda.blockIdx.z == 0, head < kv_heads and slot >= 0
        for k in range(EACH):
            values[k] = float32(0)
        if is_written:
            load_components(key if is_key else value, (token * kv_heads + head) * head_dim + component, values)
            if is_smooth and is_key:
                smooth(smoothing, head, component, values)
        codes, scales = key_codes if is_key else value_codes, key_scales if is_key else value_scales
        store_quantized(codes, scales, slot, head, lane, values, is_written and lane <= last)

    return append_quantized_kernel


def append_quantized(key, value, key_cache, value_cache, slot_mapping, stream=None):
    """Quantise key and value [T, kv_heads, head_dim] into QuantizedCaches; slots int32 [T], -1 writes nothing.

    The caller multiplies queries of smoothed keys by smoothing[2] (qkv_rope_append does). The kernel does not check that slots lie inside
    the cache or that no two tokens share one. Raises KernelArgumentError for shapes, dtypes and alignment.
    """
    check_array("key", key, FLOAT_DTYPES, tokens=None, kv_heads=None, head_dim=None)
    tokens, kv_heads, head_dim = key.shape
    check_array("value", value, (key.dtype,), tokens=tokens, kv_heads=kv_heads, head_dim=head_dim)
    check_array("slot_mapping", slot_mapping, INDEX_DTYPES, tokens=tokens)
    check_quantized_caches(key_cache, value_cache, kv_heads, head_dim)
    check_by_token(key_cache)
    check_aligned(key=key, value=value)
    block_size, lanes, is_smooth = key_cache.shape[1], lanes_of(head_dim), key_cache.smoothing is not None
    chosen = append_quantized_kernel(key.dtype, key_cache.format, block_size, is_smooth)
    arrays = (
        key, value, key_cache.codes, key_cache.scales, key_cache.smoothing if is_smooth else key, value_cache.codes, value_cache.scales,
    )  # fmt: skip
    launch(chosen, (tokens, ceil_div(kv_heads, THREADS // lanes), 2), THREADS, (*arrays, slot_mapping), stream)
