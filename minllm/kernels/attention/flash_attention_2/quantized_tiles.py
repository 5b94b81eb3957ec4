"""Tiles of quantised keys and values: codes are loaded into registers, and stored to shared memory as float16.

A tile takes two steps, between which the block computes: `fetch` starts the loads of codes, 16 bytes per thread, and of scales; `store`
dequantises them into padded rows of shared memory (tiles/cp_async.py). Dequantised numbers are never written to global memory. Rows
that no query row may see are zeros, and are not read.

Numbers are float16 whatever dtype the queries have: float16 holds 11 bits and bfloat16 8, codes and scales are made for its range, and the
tensor cores are as fast. Codes become numbers as quantization/cache_decoder.py says. fp8's scale, one per head, is not applied here:
quantized.py includes that of keys in the scale of the scores, and that of values in the factor of the output. Keys quantised by channel
read their scales from shared memory (channel_scales.py).
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

from numba import cuda, int32, int64, uint32

from minllm.kernels.attention.common.paged_cache import make_lookup
from minllm.kernels.quantization.cache_decoder import make_dequantize
from minllm.ptx import load_32, load_128, store_128
from minllm.tiles.cp_async import row_words_of

CHUNK = 16  # bytes of codes per load of a thread


class QuantizedTiles(NamedTuple):
    """Device functions that load a tile of codes; code_words, scale_words: uint32 per thread in kernel.Buffers."""

    code_words: int
    scale_words: int
    fetch: Callable  # fetch(codes, scales, context, first_key, buffers): start loading; zeros for keys outside the visible range
    store: Callable  # store(buffers, at): dequantise the codes that `fetch` loaded, and write them to shared memory from word `at` on


@functools.cache
def make_quantized_tiles(kv_format, block_size, key_tile, threads, channels=None):
    """QuantizedTiles for blocks of `threads` threads. channels: the ChannelScales of keys quantised by channel, else None."""
    block_of, _ = make_lookup(block_size)
    dequantize = make_dequantize(kv_format)
    code_bytes, groups, by_channel = kv_format.code_bytes, kv_format.groups, channels is not None
    has_pairs = not (kv_format.is_float or by_channel)
    row_words = row_words_of(kv_format.head_dim)
    chunks = code_bytes // CHUNK  # chunks of codes per row
    codes_per_word = 32 // kv_format.bits
    chunks_per_group = kv_format.group_size // (4 * codes_per_word)
    words_out = codes_per_word // 2  # words of float16 pairs per word of codes; also 16-byte stores per chunk
    rows_at_once = min(threads // chunks, key_tile)
    copy_threads, passes = rows_at_once * chunks, -(-key_tile // rows_at_once)
    all_copy, whole_passes = copy_threads == threads, key_tile % rows_at_once == 0

    @cuda.jit(device=True)
    def fetch(codes, scales, context, first_key, buffers):
        words, blocks = buffers.codes, cuda.local.array(passes, int32)
        chunk, first_row = uint32(cuda.threadIdx.x % chunks), int32(cuda.threadIdx.x // chunks)
        for i in range(passes):  # all blocks are looked up before the first load of codes, so that the loads of the table overlap
            position = int32(first_key + first_row + i * rows_at_once)
            blocks[i] = block_of(context.block_table, max(context.start, min(position, context.stop - 1)))
        kv_heads = uint32(codes.shape[1])
        for i in range(passes):
            row = int32(first_row + i * rows_at_once)
            position = int32(first_key + row)
            inside = context.start <= position and position < context.stop
            for j in range(4):
                words[4 * i + j] = uint32(0)
            buffers.scales[i] = uint32(0)
            if inside and (all_copy or cuda.threadIdx.x < copy_threads) and (whole_passes or row < key_tile):
                line = (int64(blocks[i]) * kv_heads + uint32(context.kv_head)) * block_size + uint32(position) % uint32(block_size)
                at = line * code_bytes + chunk * uint32(CHUNK)
                words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3] = load_128(codes, at)
                if has_pairs:
                    buffers.scales[i] = load_32(scales, (line * groups + chunk // uint32(chunks_per_group)) * 2)

    @cuda.jit(device=True)
    def store(buffers, at):
        chunk, first_row = int32(cuda.threadIdx.x % chunks), int32(cuda.threadIdx.x // chunks)
        to = int32(at + first_row * row_words + chunk * 4 * words_out)
        numbers = cuda.local.array(4, uint32)
        for i in range(passes):
            row = int32(first_row + i * rows_at_once)
            if (all_copy or cuda.threadIdx.x < copy_threads) and (whole_passes or row < key_tile):
                for j in range(4):  # two words of 8-bit codes fill a store of 16 bytes, as does one of 4-bit codes
                    part = cuda.local.array(4, uint32)
                    if by_channel:
                        channels.dequantize(buffers.codes[4 * i + j], buffers.shared, row, chunk, j, part)
                    else:
                        dequantize(buffers.codes[4 * i + j], buffers.scales[i], part)
                    for k in range(words_out):
                        numbers[(j * words_out + k) % 4] = part[k]
                    if (j + 1) * words_out % 4 == 0:
                        end = (j + 1) * words_out - 4
                        index = int32(to + i * rows_at_once * row_words + end)
                        store_128(buffers.shared, index, numbers[0], numbers[1], numbers[2], numbers[3])

    return QuantizedTiles(4 * passes, passes, fetch, store)
