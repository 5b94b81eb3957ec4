"""A warp's ring of tiles as in cp_async_ring.py, filled by TMA, on Hopper and later.

The cache is described as an array [num_blocks, block_size, kv_heads, head_dim / 64, 64], with block_size a multiple of 16; one lane loads
boxes of 16 keys, one KV head and 64 numbers, 128 bytes per row. A stage holds them as [K and V][head_dim / 64][keys][64], swizzled, so that
no padding is needed. The copies of a stage complete its mbarrier, which follows the warp's ring. TMA also loads slots of a block beyond the
end of a context: rows that must not be seen are cleared after they have arrived. The tensor maps set L2 promotion to 128 bytes, not more:
L2 looks up sectors that it fetches ahead twice, which is what slows cp.async.
"""

import functools

from numba import cuda, int32, uint32

from minllm.kernels.attention.common.paged_cache import make_lookup
from minllm.kernels.attention.split_tensor_core.cp_async_ring import release
from minllm.kernels.attention.split_tensor_core.plan import quotient
from minllm.kernels.attention.split_tensor_core.tile_loop import Source
from minllm.ptx import (
    cp_async_bulk_tensor_5d_shared_global,
    fence_mbarrier_init,
    fence_proxy_async,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
    mbarrier_wait_parity,
)
from minllm.runtime.tensor_map import tensor_map

BOX_KEYS, BOX_NUMBERS, BOX_ROW_BYTES = 16, 64, 128  # a TMA load's keys, its numbers per row and bytes per row


def can_fetch(head_dim, block_size):
    """Whether the blocks of a cache consist of whole TMA boxes."""
    return head_dim % BOX_NUMBERS == 0 and block_size % BOX_KEYS == 0


def map_of(cache):
    """The tensor map of a key or value cache."""
    blocks, block_size, kv_heads, head_dim = cache.shape
    boxes = cache.reshape(blocks, block_size, kv_heads, head_dim // BOX_NUMBERS, BOX_NUMBERS)
    return tensor_map(boxes, (1, BOX_KEYS, 1, 1, BOX_NUMBERS), promotion=BOX_ROW_BYTES)


@functools.cache
def make_source(sizes, plan):
    """The Source that loads tiles by TMA."""
    (block_of, _), visible_keys, advance = make_lookup(sizes.block_size), plan.visible_keys, plan.advance
    keys, warps, stages = sizes.shape.keys, sizes.shape.warps, sizes.shape.stages
    block_size, head_tiles, stage_bytes = sizes.block_size, sizes.head_tiles, sizes.stage_bytes
    value_bytes, columns = stage_bytes // 2, sizes.head_dim // BOX_NUMBERS
    groups, box_bytes, row_words = keys // BOX_KEYS, BOX_KEYS * BOX_ROW_BYTES, BOX_ROW_BYTES // 4

    @cuda.jit(device=True)
    def barrier_of(ring, stage):
        """The mbarrier of the stage at this address."""
        return uint32(ring.base + stages * stage_bytes + quotient(stage - ring.base, stage_bytes) * 8)

    @cuda.jit(device=True)
    def setup(ring):
        """Initialise the ring's mbarriers."""
        if ring.lane == 0:
            for i in range(stages):
                mbarrier_init(uint32(ring.base + stages * stage_bytes + 8 * i), 1)
            fence_mbarrier_init()
        cuda.syncwarp()

    @cuda.jit(device=True)
    def copy_tile(cursor, ring, batch, cache):
        """Start copying this warp's boxes of the cursor's tile that have visible keys; called by one lane."""
        key_map, value_map = cache
        start, stop = visible_keys(cursor.sequence, batch)
        position = int32((cursor.first + cursor.tile) * (warps * keys) + ring.warp * keys)  # position of the warp's first row
        head = quotient(cursor.head, head_tiles)
        barrier, boxes = barrier_of(ring, ring.free), int32(0)
        for group in range(groups):
            at = int32(position + BOX_KEYS * group)
            if at < stop and at + BOX_KEYS > start:
                boxes = int32(boxes + 1)
        mbarrier_arrive_expect_tx(barrier, uint32(boxes * 2 * columns * box_bytes))
        for group in range(groups):
            at = int32(position + BOX_KEYS * group)
            if at < stop and at + BOX_KEYS > start:
                block = block_of(batch.block_tables[uint32(cursor.sequence)], at)
                slot = int32(uint32(at) % uint32(block_size))
                for column in range(columns):
                    to = uint32(ring.free + column * keys * BOX_ROW_BYTES + group * box_bytes)
                    cp_async_bulk_tensor_5d_shared_global(to, key_map, 0, column, head, slot, block, barrier)
                    cp_async_bulk_tensor_5d_shared_global(uint32(to + value_bytes), value_map, 0, column, head, slot, block, barrier)

    @cuda.jit(device=True)
    def fetch(cursor, ring, batch, cache):
        """Start copying the cursor's tile, if any is left, and advance."""
        if cursor.left > 0:
            if ring.lane == 0:
                copy_tile(cursor, ring, batch, cache)
            cursor = advance(cursor, 1, batch)
        return cursor

    @cuda.jit(device=True)
    def wait(ring, position, visible):
        """Wait for the oldest tile and clear its rows outside the visible keys."""
        start, stop = visible
        mbarrier_wait_parity(barrier_of(ring, ring.stage), ring.parity)
        if position < start or position + keys > stop:
            word = uint32((ring.stage - ring.start) // 4)
            for row in range(keys):
                if position + row < start or position + row >= stop:
                    for column in range(2 * columns):  # K, then V
                        ring.words[uint32(word + (column * keys + row) * row_words + ring.lane)] = uint32(0)
            fence_proxy_async()  # before the copies that fill the stage again
        cuda.syncwarp()

    return Source(setup, fetch, wait, release, stage_bytes, sizes.ring_bytes)
