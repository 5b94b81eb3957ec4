"""The memory layout of a layer's cache: [num_blocks, block_size, kv_heads, head_dim], possibly with gaps between tokens.

The numbers of one token are contiguous, and tokens lie at equal distances, across blocks too: token `slot` begins at slot * stride. The
stride is kv_heads * head_dim if each layer has its own array, and num_layers times as much if the layers of a token lie side by side, so
that a page of memory holds few tokens of all layers rather than many tokens of one (vAttention, arXiv 2405.04437, section 5).
"""

import numpy as np

from minllm.runtime.array import DeviceArray
from minllm.runtime.kernel import check


def slot_stride(cache):
    """Elements from one token of a cache [num_blocks, block_size, kv_heads, head_dim] to the next (in kernels: ptx.token_stride)."""
    return cache.strides[1] // cache.dtype.itemsize


def layer_of(cache, layer):
    """One layer of a cache [num_blocks, block_size, layers, kv_heads, head_dim]: a view [num_blocks, block_size, kv_heads, head_dim]."""
    if isinstance(cache, np.ndarray):
        return cache[:, :, layer]
    num_blocks, block_size, layers, *row = cache.shape
    check(0 <= layer < layers, f"layer {layer} of a cache of {layers} layers")
    strides = (*cache.strides[:2], *cache.strides[3:])
    pointer = cache.pointer + layer * cache.strides[2]
    return DeviceArray(pointer, (num_blocks, block_size, *row), cache.dtype, cache.block, cache.memory, strides)
