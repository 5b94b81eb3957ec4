"""How Q, K and V reach the shared memory of fixed_split's blocks, by cp.async.

A tile's rows are packed: row r is query head r % group, of one KV head, of the token r // group. So a few tokens fill the 16 rows of mma,
and keys are read once for the whole group ("pack_gqa" in FlashAttention's code).

A block holds two tiles of K and two of V, one of each where heads are large: K of the tile after the next, and V of the next, travel while
one is computed. Copies are committed in the order K0 V0 K1 V1 ..., and at every wait 2 * (stages - 1) groups are younger than the one waited for.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, int32, int64, uint32

from minllm.kernels.attention.common.paged_cache import make_lookup
from minllm.kernels.attention.flash_attention_2.tensor_core import query_in_registers
from minllm.ptx import cp_async_16, cp_async_commit_group, cp_async_wait_group_0, cp_async_wait_group_2, shared_address
from minllm.tiles.cp_async import make_copies, row_words_of


class PackedRows(NamedTuple):
    """A tile of rows of one sequence and KV head."""

    token: int  # the sequence's first
    head: int  # the KV head's first query head
    first: int  # the tile's first row
    count: int  # rows of the sequence from there on; those of the tile beyond them do not exist


class Keys(NamedTuple):
    """The keys of a block: positions start to stop of a sequence, of one KV head."""

    keys: Any
    values: Any
    block_table: Any
    kv_head: int
    start: int
    stop: int


class Source(NamedTuple):
    """Device functions; `stage` is where a tile lies, of `stages`."""

    begin: Any  # begin(query, rows, keys, first_key, shared): Q is there, and the first tiles on their way
    keys: Any  # keys(keys, first_key, stage, shared): the tile's K is there, and a V on its way
    values: Any  # values(keys, first_key, stage, shared): the tile's V is there, and a K on its way
    stages: int
    stage_words: int


def source_sizes(tiles):
    """(stages, 32-bit words of a stage: a tile of K and one of V)."""
    return 2 if query_in_registers(tiles.head_dim, tiles.row_count) else 1, tiles.end - tiles.keys_at


@functools.cache
def make_packing(group):
    """(token_of, place_of): the token of a row, counted from the sequence's first, and (token, query head) of one of PackedRows."""

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
    """The Source of 16-bit arrays."""
    head_dim, query_tile, key_tile, threads = tiles.head_dim, tiles.query_tile, tiles.key_tile, tiles.threads
    keys_at, values_at = tiles.keys_at, tiles.values_at
    row_words, chunks = row_words_of(head_dim), 2 * -(-head_dim // 16)  # chunks of 16 bytes per row
    stages, stage_words = source_sizes(tiles)
    copies = make_copies(head_dim, 1, key_tile, threads, *make_lookup(block_size))
    _, place_of = make_packing(group)
    wait_for_group = cp_async_wait_group_2 if stages == 2 else cp_async_wait_group_0

    @cuda.jit(device=True)
    def copy_query(query, rows, shared):
        i = int32(cuda.threadIdx.x)
        while i < query_tile * chunks:
            row = int32(uint32(i) // uint32(chunks))
            column = int32(8 * (i - row * chunks))
            inside = row < rows.count and column < head_dim
            token, head = place_of(rows, rows.first + row)
            start = (int64(token) * query.shape[1] + head) * head_dim + column if inside else int64(0)
            cp_async_16(shared_address(shared, row * row_words + column // 2), query, start, 16 if inside else 0)
            i = int32(i + threads)

    @cuda.jit(device=True)
    def copy(cache, keys, first_key, shared, at):
        """Start copying a tile to word `at`; beyond the last key an empty group keeps the count right."""
        if first_key < keys.stop:
            copies.paged(cache, keys.block_table, keys.kv_head, first_key, keys.start, keys.stop, shared, at)
        cp_async_commit_group()

    @cuda.jit(device=True)
    def begin(query, rows, keys, first_key, shared):
        copy_query(query, rows, shared)
        copy(keys.keys, keys, first_key, shared, keys_at)
        if stages == 2:
            copy(keys.values, keys, first_key, shared, values_at)
            copy(keys.keys, keys, int32(first_key + key_tile), shared, keys_at + stage_words)
        wait_for_group()
        cuda.syncthreads()

    @cuda.jit(device=True)
    def arrive_keys(keys, first_key, stage, shared):
        wait_for_group()
        cuda.syncthreads()  # this tile of K has arrived, and nobody reads the last tile of V any more, whose place the next one takes
        ahead = stages - 1
        copy(keys.values, keys, int32(first_key + ahead * key_tile), shared, values_at + (ahead - stage) * stage_words)

    @cuda.jit(device=True)
    def arrive_values(keys, first_key, stage, shared):
        wait_for_group()
        cuda.syncthreads()  # this tile of V has arrived, and nobody reads this tile of K any more
        copy(keys.keys, keys, int32(first_key + stages * key_tile), shared, keys_at + stage * stage_words)

    return Source(begin, arrive_keys, arrive_values, stages, stage_words)
