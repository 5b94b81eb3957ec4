"""Tiles of queries, keys and values on their way to shared memory, for 16-bit types and tensor cores.

A row of a tile is one token's head_dim numbers, padded with zeros to a multiple of 16, the depth of an mma step, and then by 16 bytes
more: so rows start at an odd multiple of 16 bytes from each other, and the eight rows of 16 bytes that ldmatrix reads at one time lie
in different banks (a row of 128 or 256 bytes would put all eight into the same four banks). Where a row is no multiple of 128 bytes
(head_dim 32 or 80), eight neighbouring copies reach over that gap into the next row, and two of them meet in a bank: that costs a copy
once, where ldmatrix reads it once for every warp.

The copies are cp.async: 16 bytes a thread, straight from global to shared memory, without registers, while the block computes. A
thread keeps its column and takes every rows_at_once-th row. Rows that no query row may see are filled with zeros and not read: what
lies there may be NaN, and 0 * NaN would spoil P V. Bytes: each visible row once, head_dim * 2.
"""

import functools

from numba import cuda, int32, int64, uint32

from minllm.kernels.attention.common.paged_cache import make_lookup
from minllm.ptx import cp_async_16, shared_address, token_stride


def row_words_of(head_dim):
    """32-bit words from one row of a tile to the next."""
    return (-(-head_dim // 16) * 16 + 8) // 2


@functools.cache
def make_tile_copies(head_dim, block_size, query_tile, key_tile, threads):
    """(copy_query_tile, copy_cache_tile): device functions for blocks of `threads` threads.

    The caller commits the copies to a group and waits for it.
    """
    block_of, element_of = make_lookup(block_size)
    row_words = row_words_of(head_dim)
    chunks = -(-head_dim // 16) * 2  # of 16 bytes, in a row
    rows_at_once = min(threads // chunks, key_tile)  # rows that the block copies at one time, a thread a chunk
    copy_threads, query_passes, key_passes = rows_at_once * chunks, -(-query_tile // rows_at_once), -(-key_tile // rows_at_once)
    all_copy, whole_passes = copy_threads == threads, key_tile % rows_at_once == 0 and query_tile % rows_at_once == 0

    @cuda.jit(device=True)
    def copy_query_tile(query, token, head, rows, shared):
        """Start copying rows token to token + rows of one head; rows of the tile beyond them become zeros."""
        column = cuda.threadIdx.x % chunks * 8
        for i in range(query_passes):
            row = cuda.threadIdx.x // chunks + i * rows_at_once
            if (all_copy or cuda.threadIdx.x < copy_threads) and (whole_passes or row < query_tile):
                inside = row < rows and column < head_dim
                index = (int64(token + row) * query.shape[1] + head) * head_dim + column if inside else int64(0)
                cp_async_16(shared_address(shared, row * row_words + column // 2), query, index, 16 if inside else 0)

    @cuda.jit(device=True)
    def copy_cache_tile(cache, block_table, kv_head, first_key, visible_start, visible_stop, shared, at):
        """Start copying keys (or values) first_key to first_key + key_tile; those outside of the visible range become zeros."""
        blocks = cuda.local.array(key_passes, int32)
        column, first_row = int32(cuda.threadIdx.x % chunks * 8), int32(cuda.threadIdx.x // chunks)
        for i in range(key_passes):  # all looked up before the first is copied, so that the loads of the table overlap
            position = int32(first_key + first_row + i * rows_at_once)
            blocks[i] = block_of(block_table, max(visible_start, min(position, visible_stop - 1)))
        key_stride, within = token_stride(cache, int32(cache.shape[2]) * head_dim), kv_head * head_dim + column
        to = shared_address(shared, at + first_row * row_words + column // 2)
        for i in range(key_passes):
            row = int32(first_row + i * rows_at_once)
            position = int32(first_key + row)
            inside = visible_start <= position and position < visible_stop and column < head_dim
            if (all_copy or cuda.threadIdx.x < copy_threads) and (whole_passes or row < key_tile):
                index = element_of(blocks[i], position, key_stride, within)  # outside: somewhere, and nothing is read
                cp_async_16(uint32(to + 4 * i * rows_at_once * row_words), cache, index, 16 if inside else 0)

    return copy_query_tile, copy_cache_tile
