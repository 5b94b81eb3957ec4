"""The memory layout of a layer's cache: [num_blocks, block_size, kv_heads, head_dim], possibly with gaps between tokens.

The numbers of one token are contiguous, and tokens lie at equal distances, across blocks too: token `slot` begins at slot * stride. The
stride is kv_heads * head_dim if each layer has its own array, and num_layers times as much if the layers of a token lie side by side, so
that a page of memory holds few tokens of all layers rather than many tokens of one (vAttention, arXiv 2405.04437, section 5).
"""

import numpy as np

from minllm.kernels.arguments import check_array, check_layout
from minllm.runtime.array import DeviceArray
from minllm.runtime.kernel import check


def slot_stride(cache):
    """Elements from one token of a cache [num_blocks, block_size, kv_heads, head_dim] to the next (in kernels: ptx.token_stride)."""
    return cache.strides[1] // cache.dtype.itemsize


def by_slot(cache):
    """A cache [num_blocks, block_size, kv_heads, head_dim] as [slots, kv_heads, head_dim]."""
    return cache.reshape((cache.shape[0] * cache.shape[1], *cache.shape[2:]))


def layer_of(cache, layer):
    """One layer of a cache [num_blocks, block_size, layers, kv_heads, head_dim]: a view [num_blocks, block_size, kv_heads, head_dim]."""
    if isinstance(cache, np.ndarray):
        return cache[:, :, layer]
    num_blocks, block_size, layers, *row = cache.shape
    check(0 <= layer < layers, f"layer {layer} of a cache of {layers} layers")
    strides = (*cache.strides[:2], *cache.strides[3:])
    pointer = cache.pointer + layer * cache.strides[2]
    return DeviceArray(pointer, (num_blocks, block_size, *row), cache.dtype, cache.block, cache.memory, strides)


def check_caches(key_cache, value_cache, dtype, kv_heads, head_dim):
    """Raise KernelArgumentError unless both caches are [num_blocks, block_size, kv_heads, head_dim] of `dtype`."""
    row = dict(kv_heads=kv_heads, head_dim=head_dim, gaps=True)
    check_array("key_cache", key_cache, (dtype,), num_blocks=None, block_size=None, **row)
    num_blocks, block_size = key_cache.shape[:2]
    check_array("value_cache", value_cache, (dtype,), num_blocks=num_blocks, block_size=block_size, **row)
    check_layout("key_cache", key_cache)
    check_layout("value_cache", value_cache)
    check(slot_stride(key_cache) == slot_stride(value_cache), "key_cache and value_cache must have the same strides")
