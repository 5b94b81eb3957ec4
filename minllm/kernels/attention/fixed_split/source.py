"""Loads Q, K and V into the shared memory of fixed_split's blocks by cp.async.

A tile's rows are packed: row r is query head r % group of one KV head, for the token r // group. So a few tokens fill the 16 rows of mma,
and keys are read once for the whole group ("pack_gqa" in FlashAttention's code).

Every warp looks up the cache blocks of a tile's keys one tile ahead, one key per lane for each 32 keys, and distributes them by shuffles: a
block of one warp would otherwise wait for 32 loads of the block table before each tile.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

from numba import cuda, int32, int64, uint32

from minllm.kernels.attention.common.paged_cache import make_lookup
from minllm.ptx import cp_async_16, cp_async_commit_group, cp_async_wait_group_0, cp_async_wait_group_1, shared_address, token_stride
from minllm.runtime.array_protocol import Array
from minllm.tiles.cp_async import row_words_of
from minllm.tiles.warp import ALL_LANES, WARP

MOST_UNROLLED = 4  # passes with addresses computed at the same time; more would need more registers


class PackedRows(NamedTuple):
    """A tile of packed rows of one sequence and KV head."""

    token: int  # the sequence's first token
    head: int  # the KV head's first query head
    first: int  # the tile's first row
    count: int  # rows of the sequence from `first` on; may be fewer than the tile has


class Keys(NamedTuple):
    """The keys of a block: positions start to stop of a sequence, of one KV head."""

    keys: Array
    values: Array
    block_table: Array
    kv_head: int
    start: int
    stop: int
    found: Array  # int32 [keys of a tile / 32]: the cache blocks that this lane has looked up


class Source(NamedTuple):
    """Device functions that load one tile after another; first_key: the first key of the tile."""

    begin: Callable  # begin(query, rows, keys, first_key, shared): starts loading Q, K and V
    keys: Callable  # keys(keys, first_key): waits for Q and K
    values: Callable  # values(keys, first_key, shared): waits for V, and starts loading the next K
    finish: Callable  # finish(keys, first_key, shared): waits until V has been read, and starts loading the next V


@functools.cache
def make_packing(group):
    """(token_of, place_of): device functions for a row's token, counted from the sequence's first, and for its (token, query head)."""

    @cuda.jit(device=True)
    def token_of(row):
        return int32(uint32(row) // uint32(group))

    @cuda.jit(device=True)
    def place_of(rows, row):
        token = token_of(row)
        return int32(rows.token + token), int32(rows.head + row - token * group)

    return token_of, place_of


@functools.cache
def make_source(tiles, block_size, group):
    """The Source for 16-bit arrays."""
    key_tile, threads, chunks = tiles.key_tile, tiles.threads, 2 * -(-tiles.head_dim // 16)  # chunks: of 16 bytes, per row
    rows_at_once = min(WARP, 1 << (threads // chunks).bit_length() - 1)  # a power of two, so that one word of `found` has all their blocks
    copy_query, copy_keys = make_copies(tiles, block_size, group, chunks, rows_at_once)
    words, keys_at, values_at = key_tile // WARP, tiles.keys_at, tiles.values_at
    block_of, _ = make_lookup(block_size)

    @cuda.jit(device=True)
    def look_up(keys, first_key):
        """Look up the cache blocks of a tile's keys; keys outside the range use those of its ends."""
        for word in range(words):
            position = int32(first_key + WARP * word + cuda.threadIdx.x % WARP)
            keys.found[word] = block_of(keys.block_table, max(keys.start, min(position, int32(keys.stop - 1))))

    @cuda.jit(device=True)
    def begin(query, rows, keys, first_key, shared):
        copy_query(query, rows, shared)
        if first_key < keys.stop:
            look_up(keys, first_key)
            copy_keys(keys.keys, keys, first_key, shared, keys_at)
            cp_async_commit_group()
            copy_keys(keys.values, keys, first_key, shared, values_at)
        cp_async_commit_group()

    @cuda.jit(device=True)
    def arrive_keys(keys, first_key):
        cp_async_wait_group_1()
        cuda.syncthreads()
        if first_key + key_tile < keys.stop:
            look_up(keys, int32(first_key + key_tile))

    @cuda.jit(device=True)
    def arrive_values(keys, first_key, shared):
        cp_async_wait_group_0()
        cuda.syncthreads()  # V has arrived, and no thread reads K any more
        if first_key + key_tile < keys.stop:
            copy_keys(keys.keys, keys, int32(first_key + key_tile), shared, keys_at)
        cp_async_commit_group()

    @cuda.jit(device=True)
    def finish(keys, first_key, shared):
        cuda.syncthreads()
        if first_key + key_tile < keys.stop:
            copy_keys(keys.values, keys, int32(first_key + key_tile), shared, values_at)
        cp_async_commit_group()

    return Source(begin, arrive_keys, arrive_values, finish)


def make_copies(tiles, block_size, group, chunks, rows_at_once):
    """(copy_query, copy_keys): device functions that start copying a tile, 16 bytes per thread and pass; missing rows become zeros."""
    head_dim, query_tile, key_tile, row_words = tiles.head_dim, tiles.query_tile, tiles.key_tile, row_words_of(tiles.head_dim)
    _, place_of = make_packing(group)
    _, element_of = make_lookup(block_size)
    query_passes, unrolled = -(-query_tile // rows_at_once), min(MOST_UNROLLED, WARP // rows_at_once)

    @cuda.jit(device=True)
    def copy_query(query, rows, shared):
        column, first_row = int32(8 * (cuda.threadIdx.x % chunks)), int32(cuda.threadIdx.x // chunks)
        for i in range(query_passes):
            row = int32(first_row + i * rows_at_once)
            if first_row < rows_at_once and row < query_tile:
                inside = row < rows.count and column < head_dim
                token, head = place_of(rows, int32(rows.first + row))
                start = (int64(token) * query.shape[1] + head) * head_dim + column if inside else int64(0)
                cp_async_16(shared_address(shared, row * row_words + column // 2), query, start, 16 if inside else 0)

    @cuda.jit(device=True)
    def copy_keys(cache, keys, first_key, shared, at):
        column, thread_row = int32(8 * (cuda.threadIdx.x % chunks)), int32(cuda.threadIdx.x // chunks)
        copies, first_row = thread_row < rows_at_once, int32(thread_row % rows_at_once)
        stride, within = token_stride(cache, int32(cache.shape[2]) * head_dim), keys.kv_head * head_dim + column
        for word in range(key_tile // WARP):
            row = first_row
            while row < WARP:
                for i in range(unrolled):
                    here = int32(row + i * rows_at_once)
                    position = int32(first_key + WARP * word + here)
                    element = element_of(cuda.shfl_sync(ALL_LANES, keys.found[word], here), position, stride, within)
                    inside = keys.start <= position and position < keys.stop and column < head_dim
                    if copies:
                        to = shared_address(shared, at + (WARP * word + here) * row_words + column // 2)
                        cp_async_16(to, cache, element, 16 if inside else 0)
                row = int32(row + unrolled * rows_at_once)

    return copy_query, copy_keys
