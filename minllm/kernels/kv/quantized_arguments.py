"""Checks of what the kernels that write a quantised cache are given."""

import numpy as np

from minllm.kernels.arguments import address, check_array
from minllm.kernels.quantization.cache import check_same_format, is_quantized
from minllm.kernels.quantization.lanes import EACH
from minllm.kernels.vector import VECTOR_BYTES
from minllm.runtime.kernel import check
from minllm.tiles.warp import WARP

UINT8, FLOAT16, FLOAT32 = np.dtype(np.uint8), np.dtype(np.float16), np.dtype(np.float32)


def check_quantized_caches(key_cache, value_cache, kv_heads, head_dim):
    """Raise KernelArgumentError unless both are whole QuantizedCaches of one format for `kv_heads` heads (None: any) of `head_dim`."""
    check_same_format(key_cache, value_cache)
    check(is_quantized(key_cache), f"key_cache is an array of {key_cache.dtype}; append takes those")
    found = key_cache.format
    check(found.head_dim == head_dim, f"the caches are for heads of {found.head_dim}, and heads have {head_dim}")
    check(found.head_dim <= WARP * EACH, f"a head of {head_dim} does not fit a warp, which takes {WARP * EACH} components")
    num_blocks, block_size, heads, _ = key_cache.shape
    check(kv_heads in (None, heads), f"the caches hold {heads} KV heads, and there are {kv_heads}")
    rows = dict(num_blocks=num_blocks, kv_heads=heads, block_size=block_size)
    for name, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
        check_array(f"{name}.codes", cache.codes, (UINT8,), **rows, code_bytes=found.code_bytes)
        if found.is_float:
            check_array(f"{name}.scales", cache.scales, (FLOAT32,), kv_heads=heads)
        else:
            by_channel = dict(rows, block_size=block_size // found.token_group, head_dim=head_dim)
            by_token = dict(rows, groups=found.groups)
            check_array(f"{name}.scales", cache.scales, (FLOAT16,), **(by_channel if cache.by_channel else by_token), pair=2)
    check(value_cache.smoothing is None, "value_cache has a smoothing; only keys may, because nobody takes it back")
    if key_cache.smoothing is not None:
        check_array("key_cache.smoothing", key_cache.smoothing, (FLOAT32,), parts=3, kv_heads=heads, head_dim=head_dim)


def check_by_token(key_cache):
    """Raise KernelArgumentError for keys quantised by channel, which needs whole groups of tokens."""
    check(
        not key_cache.by_channel, f"keys in {key_cache.format.name} are quantised in groups of tokens: append plain ones, quantize_groups"
    )


def check_aligned(**arrays):
    """Raise KernelArgumentError unless each array begins at an address that is a multiple of 16 bytes."""
    for name, array in arrays.items():
        check(address(array) % VECTOR_BYTES == 0, f"{name} does not begin at a multiple of {VECTOR_BYTES} bytes; copy it")
