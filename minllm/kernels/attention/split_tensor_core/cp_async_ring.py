"""A warp's own ring of key and value tiles in shared memory, filled by cp.async: lanes copy chunks of 16 bytes.

The warp that computes on a stage also fills it, so that no barrier of the block lies between memory and tensor cores. A stage holds the
rows of K, then those of V. A row is head_dim numbers, padded with zeros to a multiple of 16 and then by 16 bytes, so that the eight rows of
an ldmatrix tile lie in different banks. Keys that must not be seen are not read and become zeros: their memory may hold NaN, and 0 * NaN
would spoil P V.
"""

import functools

from numba import cuda, int32, int64, uint32

from minllm.kernels.attention.common.paged_cache import make_lookup
from minllm.kernels.attention.split_tensor_core.plan import quotient
from minllm.kernels.attention.split_tensor_core.tile_loop import Source
from minllm.ptx import (
    cp_async_16,
    cp_async_commit_group,
    cp_async_wait_group_1,
    cp_async_wait_group_2,
    cp_async_wait_group_3,
    token_stride,
)

WAIT_FOR_OLDEST = {2: cp_async_wait_group_1, 3: cp_async_wait_group_2, 4: cp_async_wait_group_3}  # by number of stages


@cuda.jit(device=True)
def release(ring):
    """Wait until all lanes have read the stage, which is filled next."""
    cuda.syncwarp()


@functools.cache
def make_source(sizes, plan):
    """The Source that loads tiles by cp.async."""
    head_dim, head_tiles, row_bytes, keys, warps = sizes.head_dim, sizes.head_tiles, sizes.row_bytes, sizes.shape.keys, sizes.shape.warps
    (block_of, element_of), visible_keys, advance = make_lookup(sizes.block_size), plan.visible_keys, plan.advance
    chunks = 2 * sizes.steps  # 16-byte chunks per row
    copies = keys * chunks // 32  # 16-byte copies per lane for K; V takes the same number
    in_one_block = sizes.block_size % keys == 0  # a warp's rows lie in one block of the cache
    padded = head_dim % 16 != 0
    wait_for_oldest = WAIT_FOR_OLDEST[sizes.shape.stages]

    @cuda.jit(device=True)
    def copy_tile(cursor, ring, batch, cache):
        """Start copying this warp's rows of the cursor's tile."""
        key_cache, value_cache = cache
        start, stop = visible_keys(cursor.sequence, batch)
        position = int32((cursor.first + cursor.tile) * (warps * keys) + ring.warp * keys)  # position of the warp's first row
        block_table = batch.block_tables[uint32(cursor.sequence)]
        key_stride = token_stride(key_cache, int32(int32(key_cache.shape[2]) * head_dim))
        within = int32(quotient(cursor.head, head_tiles) * head_dim)
        block = int32(0)
        if in_one_block:
            block = block_of(block_table, max(start, min(position, stop - 1)))
        for i in range(copies):
            row = quotient(ring.lane + 32 * i, chunks)
            column = int32((ring.lane + 32 * i - row * chunks) * 8)
            at = int32(position + row)
            if not in_one_block:
                block = block_of(block_table, max(start, min(at, stop - 1)))
            inside = start <= at and at < stop and (not padded or column < head_dim)
            element = element_of(block, at, key_stride, int32(within + column)) if inside else int64(0)
            to = uint32(ring.free + row * row_bytes + column * 2)
            cp_async_16(to, key_cache, element, 16 if inside else 0)
            cp_async_16(uint32(to + keys * row_bytes), value_cache, element, 16 if inside else 0)

    @cuda.jit(device=True)
    def setup(ring):
        """cp.async needs no preparation."""

    @cuda.jit(device=True)
    def fetch(cursor, ring, batch, cache):
        """Start copying the cursor's tile, if any is left, and advance; always commits one group of copies."""
        if cursor.left > 0:
            copy_tile(cursor, ring, batch, cache)
            cursor = advance(cursor, 1, batch)
        cp_async_commit_group()
        return cursor

    @cuda.jit(device=True)
    def wait(ring, position, visible):
        """Wait until the oldest tile has arrived, leaving the newer groups in flight."""
        wait_for_oldest()
        cuda.syncwarp()

    return Source(setup, fetch, wait, release, sizes.stage_bytes, sizes.ring_bytes)
