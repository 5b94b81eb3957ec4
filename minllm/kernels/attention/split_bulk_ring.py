"""The ring of split_ring.py filled by bulk copies: the copy engine fetches a row a lane, beside the threads. For Hopper and later.

A lane starts the copy of one row of K or V, head_dim numbers that lie together in the cache; the stage's mbarrier counts its bytes. No
lane computes addresses for every 16 bytes, and the engine asks memory for whole rows. Rows that must not be seen are not fetched: their
lane clears them.
"""

import functools

from numba import cuda, int32, uint32

from minllm.kernels.attention.paged_cache import make_lookup
from minllm.kernels.attention.shared_tiles import row_words_of
from minllm.kernels.attention.split_plan import FIRST, HEAD, LEFT, SEQUENCE, TILE, make_walk, quotient, visible_keys
from minllm.kernels.attention.split_ring import stage_bytes_of
from minllm.ptx import (
    cp_async_bulk_shared_global,
    fence_mbarrier_init,
    fence_proxy_async,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
    mbarrier_wait_parity,
    shared_address,
)


@functools.cache
def make_bulk_ring(head_dim, block_size, head_tiles, keys, warps, stages):
    """(setup, fetch, wait): device functions for a warp's ring; `rings` is the block's shared memory as words."""
    block_of, element_of = make_lookup(block_size)
    _, advance = make_walk(warps * keys)
    row_words, stage_bytes = row_words_of(head_dim), stage_bytes_of(head_dim, keys)
    rows_each = 2 * keys // 32  # of a lane
    row_bytes, head_bytes = 4 * row_words, 2 * head_dim
    ring_words = stages * stage_bytes // 4

    @cuda.jit(device=True)
    def setup(rings, barriers, warp, lane):
        """Make the ring's mbarriers, and clear the ring where rows are padded."""
        if lane == 0:
            for stage in range(stages):
                mbarrier_init(shared_address(barriers, warp * stages + stage), 1)
            fence_mbarrier_init()
        if head_dim % 16 != 0:
            word = uint32(lane)
            while word < ring_words:
                rings[uint32(warp * ring_words + word)] = uint32(0)
                word = uint32(word + 32)
            fence_proxy_async()
        cuda.syncwarp()

    @cuda.jit(device=True)
    def copy_tile(cursor, batch, cache, rings, barrier, warp, lane, stage):
        """Start copying this warp's rows of the cursor's tile to a stage."""
        key_cache, value_cache, block_tables = cache
        start, stop = visible_keys(cursor[SEQUENCE], batch)
        position = int32((cursor[FIRST] + cursor[TILE]) * (warps * keys) + warp * keys)  # of the warp's first row
        block_table = block_tables[uint32(cursor[SEQUENCE])]
        key_stride = int32(int32(key_cache.shape[2]) * head_dim)
        within = int32(quotient(cursor[HEAD], head_tiles) * head_dim)
        if lane == 0:
            rows = int32(max(0, min(stop, position + keys) - max(start, position)))
            mbarrier_arrive_expect_tx(barrier, uint32(2 * head_bytes * rows))
        cuda.syncwarp()
        word = uint32(warp * ring_words + stage * (stage_bytes // 4))
        for i in range(rows_each):
            row = int32((lane + 32 * i) % keys)
            is_value = lane + 32 * i >= keys
            at = int32(position + row)
            to = uint32(word + (lane + 32 * i) * row_words)
            if start <= at and at < stop:
                index = element_of(block_of(block_table, at), at, key_stride, within)
                if is_value:
                    cp_async_bulk_shared_global(shared_address(rings, to), value_cache, index, head_bytes, barrier)
                else:
                    cp_async_bulk_shared_global(shared_address(rings, to), key_cache, index, head_bytes, barrier)
            else:
                for j in range(row_words):
                    rings[uint32(to + j)] = uint32(0)
                fence_proxy_async()

    @cuda.jit(device=True)
    def fetch(cursor, heads, batch, cache, rings, barriers, warp, lane, stage):
        """Start copying the cursor's tile, if any is left, and go on to the next."""
        if cursor[LEFT] > 0:
            copy_tile(cursor, batch, cache, rings, shared_address(barriers, warp * stages + stage), warp, lane, stage)
            advance(cursor, 1, heads, batch)

    @cuda.jit(device=True)
    def wait(barriers, warp, stage, parity):
        """Wait until the stage's tile is there."""
        mbarrier_wait_parity(shared_address(barriers, warp * stages + stage), parity)
        cuda.syncwarp()

    return setup, fetch, wait
