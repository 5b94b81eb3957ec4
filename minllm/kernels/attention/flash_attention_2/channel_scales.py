"""Scales and zeros of keys quantised by channel, in shared memory, and dequantisation by them (quantized_tiles.py).

A tile of keys has one (scale, zero) per group of TOKEN_GROUP keys and channel. They are loaded by cp.async while the tile before is
multiplied. To dequantise, a thread reads those of the 32 channels in its 16 bytes of codes. Channels are contiguous in global memory; in
shared memory 16 bytes of padding follow every 32 of them, so that the threads of a row, which read at the same time, have no bank
conflicts. Bytes: 4 * head_dim per group and KV head, once per tile of queries and head.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

from numba import cuda, int32, int64, uint32

from minllm.kernels.attention.common.paged_cache import make_lookup
from minllm.kernels.quantization.cache_decoder import NIBBLES, TWO_TIMES_1024, scaled_pair
from minllm.ptx import cp_async_16, load_128, prmt, shared_address

CHUNK, CHUNK_PITCH = 32, 36  # channels per 16 bytes of codes; words from the scales of one chunk to those of the next
LOWER_HALVES, UPPER_HALVES = 0x5410, 0x7632  # prmt: the lower, or the upper, 16 bits of two words


def scale_words_of(kv_format, key_tile):
    """32-bit words of shared memory for a tile's scales and zeros."""
    return -(-key_tile // kv_format.token_group) * kv_format.head_dim // CHUNK * CHUNK_PITCH


class ChannelScales(NamedTuple):
    """Device functions for keys that are quantised by channel."""

    copy: Callable  # copy(context, first_key, shared): start copying the scales of the keys from first_key on; zeros for unseen groups
    dequantize: Callable  # dequantize(word, shared, row, chunk, part, out): word `part` of the four of a chunk to 4 pairs of float16


@functools.cache
def make_channel_scales(kv_format, block_size, key_tile, threads, scales_at):
    """ChannelScales for blocks of `threads` threads, and tiles that begin at a group or lie within one.

    scales_at: the word of shared memory at which a tile's scales begin.
    """
    block_of, _ = make_lookup(block_size)
    head_dim, token_group, chunks = kv_format.head_dim, kv_format.token_group, kv_format.head_dim // CHUNK
    vectors = head_dim // 4  # 16-byte vectors per group
    tile_vectors = -(-key_tile // token_group) * vectors
    passes = -(-tile_vectors // threads)

    @cuda.jit(device=True)
    def copy(context, first_key, shared):
        kv_heads = uint32(context.key_scales.shape[1])
        for i in range(passes):
            vector = int32(cuda.threadIdx.x + i * threads)
            if vector < tile_vectors:
                group, channel = vector // vectors, int32(vector % vectors * 4)
                position = int32(first_key // token_group * token_group + group * token_group)
                inside = context.start < position + token_group and position < context.stop
                block = block_of(context.block_table, max(context.start, min(position, context.stop - 1)))
                line = (int64(block) * kv_heads + uint32(context.kv_head)) * block_size + uint32(position) % uint32(block_size)
                index = (line // token_group * head_dim + channel) * 2
                to = scales_at + (group * chunks + channel // CHUNK) * CHUNK_PITCH + channel % CHUNK
                cp_async_16(shared_address(shared, to), context.key_scales, index, 16 if inside else 0)

    @cuda.jit(device=True)
    def dequantize(word, shared, row, chunk, part, out):
        pairs = cuda.local.array(8, uint32)
        at = int32(scales_at + (row // token_group * chunks + chunk) * CHUNK_PITCH + 8 * part)
        pairs[0], pairs[1], pairs[2], pairs[3] = load_128(shared, at)
        pairs[4], pairs[5], pairs[6], pairs[7] = load_128(shared, at + 4)
        for i in range(4):
            scale = prmt(pairs[2 * i], pairs[2 * i + 1], uint32(LOWER_HALVES))
            zero = prmt(pairs[2 * i], pairs[2 * i + 1], uint32(UPPER_HALVES))
            code = (word >> uint32(4 * i)) & uint32(NIBBLES) | uint32(TWO_TIMES_1024)
            out[i] = scaled_pair(code, scale, zero)

    return ChannelScales(copy, dequantize)
