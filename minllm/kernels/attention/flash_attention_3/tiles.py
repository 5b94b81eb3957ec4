"""Tiles of queries, keys and values for Hopper: how they are cut, and how its copy engine (TMA) fetches them, for 16-bit types.

A tile [rows, head_dim] lies in shared memory in pieces of 64 columns, 128 bytes a row, or of 32 where that wastes less (head_dim 80, 96);
the copy engine permutes the 16-byte chunks of a piece ("swizzle"), so that no access meets a bank conflict, and fills columns beyond
head_dim with zeros. One thread starts a copy with the coordinates of its corner; an mbarrier counts the bytes that have arrived.

A tile of a paged cache is fetched page by page, one box of block_size rows each, to where its rows belong. Pages that no row of queries
may see are fetched from beyond the end of the cache, where the copy engine finds zeros. A page that is visible in part may hold NaN in its
other slots: masked keys do not count whatever they hold, but values would (0 * NaN is NaN), so their rows are cleared after they arrived.
"""

import functools
from dataclasses import dataclass

from numba import cuda, int32, uint32

from minllm.kernels.attention.common.paged_cache import make_lookup
from minllm.ptx import (
    bar_sync,
    cp_async_bulk_tensor_3d_shared_global,
    cp_async_bulk_tensor_4d_shared_global,
    fence_proxy_async,
    mbarrier_arrive_expect_tx,
    shared_address,
)
from minllm.runtime.array import DeviceArray
from minllm.runtime.tensor_map import tensor_map

ATOM_BYTES = 1024  # swizzled pieces begin at multiples of this
BARRIER_BYTES = 8
TILE_BYTES = 208 * 1024  # that tiles may take of a block's 227 KB of shared memory
CLEARED = 1  # the named barrier of consumers that have cleared rows


@dataclass(frozen=True)
class TileShape:
    """How a block's tiles are cut, and where they lie: `consumers` warpgroups of 64 query rows each share tiles of `key_tile` keys.

    Shared memory, from a multiple of ATOM_BYTES on: `query_slots` tiles of queries; a ring of `stages` tiles of keys, one of values; the
    mbarriers of the tiles of queries, full and empty, then for each ring those of its stages, full and empty.
    """

    head_dim: int
    consumers: int
    key_tile: int
    stages: int = 2

    @property
    def query_tile(self):
        """Query rows of a block."""
        return 64 * self.consumers

    @property
    def piece(self):
        """Columns of a piece: 64, or 32 where that leaves fewer columns of zeros."""
        return 64 if -(-self.head_dim // 64) * 64 == -(-self.head_dim // 32) * 32 else 32

    @property
    def pieces(self):
        """Pieces that a row of head_dim columns takes."""
        return -(-self.head_dim // self.piece)

    @property
    def row_bytes(self):
        """Bytes of a row within a piece: the swizzle's span."""
        return 2 * self.piece

    @property
    def query_bytes(self):
        """Shared memory of a tile of queries."""
        return self.query_tile * self.pieces * self.row_bytes

    @property
    def key_bytes(self):
        """Shared memory of a tile of keys, or of values."""
        return self.key_tile * self.pieces * self.row_bytes

    @property
    def ring_bytes(self):
        """Shared memory of a ring of tiles."""
        return self.stages * self.key_bytes

    @property
    def query_registers(self):
        """Registers of a thread that a warpgroup's 64 rows of queries take as operands of wgmma."""
        return -(-self.head_dim // 16) * 4

    @property
    def queries_in_registers(self):
        """Whether queries stay in registers beside output, scores and weights: it spares a third of what Q K^T reads of shared memory."""
        others = self.head_dim // 2 + self.key_tile // 2 + self.key_tile // 4
        return self.consumers < 3 and self.query_registers + others <= 192

    @property
    def query_slots(self):
        """Tiles of queries in shared memory: two if they stay there, of this piece of work and of the next, where two fit; else one."""
        return 2 if not self.queries_in_registers and 2 * self.query_bytes + 2 * self.ring_bytes <= TILE_BYTES else 1

    @property
    def barriers_at(self):
        """Where the mbarriers begin."""
        return self.query_slots * self.query_bytes + 2 * self.ring_bytes

    @property
    def ring_barrier_bytes(self):
        """Shared memory of the mbarriers of a ring."""
        return 2 * self.stages * BARRIER_BYTES

    @property
    def shared_bytes(self):
        """Dynamic shared memory of a block, with what it takes to align its start."""
        return ATOM_BYTES + self.barriers_at + 2 * self.query_slots * BARRIER_BYTES + 2 * self.ring_barrier_bytes

    def page_rows(self, block_size, max_blocks):
        """Rows of a tile that one copy fetches, or None where the copy engine cannot gather a tile from blocks of this size."""
        if max_blocks == 1 or block_size % self.key_tile == 0:
            return self.key_tile
        return block_size if block_size >= 8 and self.key_tile % block_size == 0 else None


@functools.lru_cache(maxsize=4096)
def device_map(pointer, shape, strides, dtype, box, swizzle):
    """The tensor map of an array on the GPU, made once: the same cache, or queries at the same place, come again in every layer or step.

    It does not keep the array's memory alive: who launches a kernel does.
    """
    return tensor_map(DeviceArray(pointer, shape, dtype, None, None, strides), box, swizzle)


def map_of(array, box, swizzle):
    """The tensor map of a NumPy array or a DeviceArray in boxes of `box` elements."""
    if isinstance(array, DeviceArray):
        return device_map(array.pointer, array.shape, array.strides, array.dtype, box, swizzle)
    return tensor_map(array, box, swizzle)


@functools.cache
def make_fetches(shape, block_size, page_rows, parts):
    """(fetch_query_tile, fetch_cache_part): device functions that one thread calls; `parts` threads fetch the pages of a tile together."""
    block_of, _ = make_lookup(block_size)
    piece, pieces, row_bytes, pages = shape.piece, shape.pieces, shape.row_bytes, shape.key_tile // page_rows
    query_tile, query_bytes, key_tile = shape.query_tile, shape.query_bytes, shape.key_tile
    part_pages, part_bytes = pages // parts, shape.key_bytes // parts

    @cuda.jit(device=True)
    def fetch_query_tile(address, query_map, token, head, barrier):
        """Rows token to token + query_tile of one head; those of other sequences come along, and their results are not stored."""
        mbarrier_arrive_expect_tx(barrier, query_bytes)
        for i in range(pieces):
            to = uint32(address + i * query_tile * row_bytes)
            cp_async_bulk_tensor_3d_shared_global(to, query_map, i * piece, head, token, barrier)

    @cuda.jit(device=True)
    def fetch_cache_part(address, part, cache_map, block_table, num_blocks, kv_head, first_key, visible_start, visible_stop, barrier):
        """Every `parts`-th page, from page `part` on, of the tile of keys (or values) first_key to first_key + key_tile of one KV head."""
        mbarrier_arrive_expect_tx(barrier, part_bytes)
        for i in range(part_pages):
            row = int32((parts * i + part) * page_rows)  # of the tile
            position = int32(first_key + row)
            visible = position < visible_stop and position + page_rows > visible_start
            block = block_of(block_table, position) if visible else num_blocks  # beyond the end: zeros
            slot = int32(uint32(position) % uint32(block_size))
            for j in range(pieces):
                to = uint32(address + (j * key_tile + row) * row_bytes)
                cp_async_bulk_tensor_4d_shared_global(to, cache_map, j * piece, kv_head, slot, block, barrier)

    return fetch_query_tile, fetch_cache_part


@functools.cache
def make_clear_rows(shape):
    """clear_rows: rows of a tile in shared memory become zeros, the work of all consumers' threads."""
    words_of_row, key_tile, pieces, threads = shape.row_bytes // 4, shape.key_tile, shape.pieces, 128 * shape.consumers

    @cuda.jit(device=True)
    def clear_rows(words, address, first, stop, thread):
        """Rows first to stop of the tile at a shared address of the array `words`; the swizzle keeps a row's chunks within the row."""
        tile_word = int32((address - shared_address(words, 0)) // 4)
        count = int32(max(0, stop - first) * words_of_row)
        i = int32(thread)
        while i < count:
            for piece in range(pieces):
                words[tile_word + (piece * key_tile + first) * words_of_row + i] = uint32(0)
            i += threads
        fence_proxy_async()
        bar_sync(CLEARED, threads)

    return clear_rows
