"""Tiles of queries, keys and values of FlashAttention-2 in float32: who owns what of them, and how they come to shared memory.

A block is row_threads x column_threads threads, the latter within one warp. A thread owns `rows_each` rows and, of each tile, the keys
column, column + column_threads, ...; of the output the same rows and the dimensions column, column + column_threads, ... Shared memory
holds Q, K, V and the weights. Rows of Q, K and V are padded by one float, so that neighbouring keys lie in neighbouring banks.
"""

import functools
from dataclasses import dataclass

from numba import cuda, float32, int32, int64

from minllm.kernels.attention.common.paged_cache import make_lookup
from minllm.ptx import load_float32, token_stride


@dataclass(frozen=True)
class Float32Tiles:
    """The tiles of a block; column_threads is a power of two, at most 32."""

    head_dim: int
    row_threads: int
    column_threads: int
    rows_each: int
    keys_each: int

    @property
    def threads(self):
        """Of a block."""
        return self.row_threads * self.column_threads

    @property
    def query_tile(self):
        """Rows of a block's tile of queries."""
        return self.row_threads * self.rows_each

    @property
    def key_tile(self):
        """Keys of a tile."""
        return self.column_threads * self.keys_each

    @property
    def dims_each(self):
        """Dimensions of the output that a thread owns."""
        return -(-self.head_dim // self.column_threads)

    @property
    def stride(self):
        """Shared memory, in floats: from one row to the next."""
        return self.dims_each * self.column_threads + 1

    @property
    def keys_at(self):
        """Q, then K from here on."""
        return self.query_tile * self.stride

    @property
    def values_at(self):
        """And V from here on."""
        return self.keys_at + self.key_tile * self.stride

    @property
    def weights_at(self):
        """And the weights from here on."""
        return self.values_at + self.key_tile * self.stride

    @property
    def weights_stride(self):
        """From the weights of one row to those of the next."""
        return self.key_tile + 1

    @property
    def shared_bytes(self):
        """Shared memory of a block."""
        return 4 * (self.weights_at + self.query_tile * self.weights_stride)


def tiles_for(head_dim):
    """(row threads, column threads, rows a thread, keys a thread): the largest tiles whose Q, K and V fit 99 KB of shared memory.

    That is what a block may have on GPUs of compute capability 8.6, 8.9 and 12.0; those of 8.0, 9.0 and 10.0 have more.
    """
    if head_dim <= 96:
        return 16, 16, 4, 4
    return (16, 16, 2, 2) if head_dim <= 232 else (16, 16, 2, 1)


@functools.cache
def make_tile_loads(tiles, block_size):
    """(load_query_tile, load_cache_tile)."""
    block_of, element_of = make_lookup(block_size)
    head_dim, stride, threads = tiles.head_dim, tiles.stride, tiles.threads
    query_tile, key_tile, chunks = tiles.query_tile, tiles.key_tile, tiles.head_dim // 4

    @cuda.jit(device=True)
    def load_query_tile(query, token, head, rows, shared):
        """Rows token to token + rows of one head into shared memory; rows of the tile beyond them become zeros."""
        heads = query.shape[1]
        chunk = cuda.threadIdx.x
        while chunk < query_tile * chunks:
            row, column = chunk // chunks, chunk % chunks * 4
            for i in range(4):
                shared[row * stride + column + i] = float32(0.0)
            if row < rows:
                numbers = load_float32(query, (int64(token + row) * heads + head) * head_dim + column)
                for i in range(4):
                    shared[row * stride + column + i] = numbers[i]
            chunk += threads

    @cuda.jit(device=True)
    def load_cache_tile(cache, block_table, kv_head, first_key, visible_start, visible_stop, shared, at):
        """Keys (or values) first_key to first_key + key_tile into shared memory; those outside of the visible range become zeros."""
        key_stride = token_stride(cache, int32(cache.shape[2]) * head_dim)
        chunk = cuda.threadIdx.x
        while chunk < key_tile * chunks:
            row, column = chunk // chunks, chunk % chunks * 4
            position = first_key + row
            for i in range(4):
                shared[at + row * stride + column + i] = float32(0.0)
            if visible_start <= position and position < visible_stop:
                index = element_of(block_of(block_table, position), position, key_stride, kv_head * head_dim + column)
                numbers = load_float32(cache, index)
                for i in range(4):
                    shared[at + row * stride + column + i] = numbers[i]
            chunk += threads

    return load_query_tile, load_cache_tile
