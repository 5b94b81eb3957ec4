"""A warp's own ring of key and value tiles in shared memory, filled by cp.async (split_tensor_core.py).

A stage of the ring holds KEYS rows of K, then the same rows of V; a row is head_dim numbers, padded with zeros to a multiple of 16 and
then by 16 bytes more, so that the eight rows of an ldmatrix tile lie in different banks. Only the warp that computes on a stage fills
it, so nothing but the warp has to be waited for: no barrier of the block stands between the memory and the tensor cores. Rows that
must not be seen are filled with zeros and not read: what lies there may be NaN, and 0 * NaN would spoil P V.

`batch` and cursors: plan.py. `cache` is the tuple (key_cache, value_cache, block_tables) of the kernel's arguments.
"""

import functools

from numba import cuda, int32, int64, uint32

from minllm.kernels.attention.common.paged_cache import make_lookup
from minllm.kernels.attention.split_tensor_core.plan import FIRST, HEAD, LEFT, SEQUENCE, TILE, make_walk, quotient, visible_keys
from minllm.ptx import (
    cp_async_16,
    cp_async_commit_group,
    cp_async_wait_group_1,
    cp_async_wait_group_2,
    cp_async_wait_group_3,
    token_stride,
)
from minllm.tiles.cp_async import row_words_of

WAIT_FOR_OLDEST = {2: cp_async_wait_group_1, 3: cp_async_wait_group_2, 4: cp_async_wait_group_3}  # by stages


def stage_bytes_of(head_dim, keys):
    """Bytes of a stage: `keys` rows of K and of V."""
    return 2 * keys * 4 * row_words_of(head_dim)


@functools.cache
def make_ring(head_dim, block_size, head_tiles, keys, warps, stages):
    """(setup, fetch, wait): device functions for a warp's ring, which begins at the shared address `ring`.

    head_tiles: heads of the line for each KV head.
    """
    block_of, element_of = make_lookup(block_size)
    _, advance = make_walk(warps * keys)
    row_bytes = 4 * row_words_of(head_dim)
    chunks = -(-head_dim // 16) * 2  # of 16 bytes, in a row
    copies = keys * chunks // 32  # of a lane, for keys
    in_one_block = block_size % keys == 0  # a warp's rows lie in one block of the cache
    padded = head_dim % 16 != 0
    wait_for_oldest = WAIT_FOR_OLDEST[stages]

    @cuda.jit(device=True)
    def copy_tile(cursor, batch, cache, warp, lane, stage):
        """Start copying this warp's rows of the cursor's tile to the stage at this shared address."""
        key_cache, value_cache, block_tables = cache
        start, stop = visible_keys(cursor[SEQUENCE], batch)
        position = int32((cursor[FIRST] + cursor[TILE]) * (warps * keys) + warp * keys)  # of the warp's first row
        block_table = block_tables[uint32(cursor[SEQUENCE])]
        key_stride = token_stride(key_cache, int32(int32(key_cache.shape[2]) * head_dim))
        within = int32(quotient(cursor[HEAD], head_tiles) * head_dim)
        block = int32(0)
        if in_one_block:
            block = block_of(block_table, max(start, min(position, stop - 1)))
        for i in range(copies):
            row = quotient(lane + 32 * i, chunks)
            column = int32((lane + 32 * i - row * chunks) * 8)
            at = int32(position + row)
            if not in_one_block:
                block = block_of(block_table, max(start, min(at, stop - 1)))
            inside = start <= at and at < stop and (not padded or column < head_dim)
            index = element_of(block, at, key_stride, int32(within + column)) if inside else int64(0)
            to = uint32(stage + row * row_bytes + column * 2)
            cp_async_16(to, key_cache, index, 16 if inside else 0)
            cp_async_16(uint32(to + keys * row_bytes), value_cache, index, 16 if inside else 0)

    @cuda.jit(device=True)
    def setup(ring, lane):
        """cp.async needs no preparation."""

    @cuda.jit(device=True)
    def fetch(cursor, heads, batch, cache, warp, lane, ring, stage):
        """Start copying the cursor's tile, if any is left, and go on to the next: always one group of copies."""
        if cursor[LEFT] > 0:
            copy_tile(cursor, batch, cache, warp, lane, stage)
            advance(cursor, 1, heads, batch)
        cp_async_commit_group()

    @cuda.jit(device=True)
    def wait(rings, ring_start, ring, stage, parity, position, start, stop, lane):
        """Wait for the oldest tile: all but the newest groups."""
        wait_for_oldest()
        cuda.syncwarp()

    return setup, fetch, wait
