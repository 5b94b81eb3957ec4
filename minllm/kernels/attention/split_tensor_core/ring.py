"""A warp's own ring of key and value tiles in shared memory.

cp.async fills it, or TMA on Hopper and later: two Sources of walk.py. Only the warp that computes on a stage fills it, so nothing but the
warp has to be waited for: no barrier of the block stands between memory and tensor cores. Keys that must not be seen become zeros: what
lies there may be NaN, and 0 * NaN would spoil P V.

cp.async: a stage holds `keys` rows of K, then the same rows of V. A row is head_dim numbers, padded with zeros to a multiple of 16 and then
by 16 bytes, so that the eight rows of an ldmatrix tile lie in different banks. Rows that must not be seen are filled with zeros and not
read.

TMA: a cache of whole blocks of 16 keys is an array [num_blocks, block_size, kv_heads, head_dim / 64, 64], of which one lane fetches boxes
of 16 keys, a KV head and 64 numbers, 128 bytes per row. They lie in a stage as [K and V][head_dim / 64][keys][64], swizzled, so that no
padding is needed. The copies of a stage report to its mbarrier, which lies behind the warp's ring. TMA also fetches slots of a block beyond
a context's end: rows that must not be seen are cleared after they have arrived. The tensor maps ask L2 for 128 bytes at a time, not more:
L2 looks up sectors that it fetches ahead twice, which is what cp.async loses by.
"""

import functools

from numba import cuda, int32, int64, uint32

from minllm.kernels.attention.common.paged_cache import make_lookup
from minllm.kernels.attention.split_tensor_core.plan import quotient
from minllm.kernels.attention.split_tensor_core.walk import Source
from minllm.ptx import (
    cp_async_16,
    cp_async_bulk_tensor_5d_shared_global,
    cp_async_commit_group,
    cp_async_wait_group_1,
    cp_async_wait_group_2,
    cp_async_wait_group_3,
    fence_mbarrier_init,
    fence_proxy_async,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
    mbarrier_wait_parity,
    token_stride,
)
from minllm.runtime.tensor_map import tensor_map

WAIT_FOR_OLDEST = {2: cp_async_wait_group_1, 3: cp_async_wait_group_2, 4: cp_async_wait_group_3}  # by stages
BOX_KEYS, BOX_NUMBERS, BOX_ROW_BYTES = 16, 64, 128
BARRIER_BYTES = 1024  # mbarriers behind a warp's ring, so that the next one begins at a multiple of 1024


def can_fetch(head_dim, block_size):
    """Whether blocks of a cache consist of whole TMA boxes."""
    return head_dim % BOX_NUMBERS == 0 and block_size % BOX_KEYS == 0


def map_of(cache):
    """The tensor map of a key or value cache."""
    blocks, block_size, kv_heads, head_dim = cache.shape
    boxes = cache.reshape(blocks, block_size, kv_heads, head_dim // BOX_NUMBERS, BOX_NUMBERS)
    return tensor_map(boxes, (1, BOX_KEYS, 1, 1, BOX_NUMBERS), promotion=BOX_ROW_BYTES)


def row_bytes_of(head_dim):
    """Bytes from one row of a padded tile to the next."""
    return -(-head_dim // 16) * 32 + 16


def stage_bytes_of(head_dim, shape):
    """Bytes of a stage: rows of K and of V."""
    return 4 * shape.keys * head_dim if shape.tensor_copies else 2 * shape.keys * row_bytes_of(head_dim)


def ring_bytes_of(head_dim, shape):
    """Bytes of a warp's ring."""
    return shape.stages * stage_bytes_of(head_dim, shape) + BARRIER_BYTES * shape.tensor_copies


def make_source(head_dim, block_size, head_tiles, shape, plan):
    """The Source for blocks of a SplitShape; head_tiles: heads of the line per KV head."""
    return (make_tma_source if shape.tensor_copies else make_cp_async_source)(head_dim, block_size, head_tiles, shape, plan)


@cuda.jit(device=True)
def aim(cursor, batch, ring):
    """Nothing is looked up ahead."""
    return cursor


@cuda.jit(device=True)
def release(ring):
    """All lanes have read the stage, which is filled next."""
    cuda.syncwarp()


@functools.cache
def make_cp_async_source(head_dim, block_size, head_tiles, shape, plan):
    """Tiles by cp.async."""
    block_of, element_of = make_lookup(block_size)
    visible_keys, advance, keys, warps = plan.visible_keys, plan.advance, shape.keys, shape.warps
    row_bytes = row_bytes_of(head_dim)
    chunks = -(-head_dim // 16) * 2  # of 16 bytes, per row
    copies = keys * chunks // 32  # per lane, for keys
    in_one_block = block_size % keys == 0  # a warp's rows lie in one block of the cache
    padded = head_dim % 16 != 0
    wait_for_oldest = WAIT_FOR_OLDEST[shape.stages]

    @cuda.jit(device=True)
    def copy_tile(cursor, ring, batch, cache):
        """Start copying this warp's rows of the cursor's tile."""
        key_cache, value_cache = cache
        start, stop = visible_keys(cursor.sequence, batch)
        position = int32((cursor.first + cursor.tile) * (warps * keys) + ring.warp * keys)  # of the warp's first row
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
        """Start copying the cursor's tile, if any is left, and go on to the next: always one group of copies."""
        if cursor.left > 0:
            copy_tile(cursor, ring, batch, cache)
            cursor = advance(cursor, 1, batch)
        cp_async_commit_group()
        return cursor

    @cuda.jit(device=True)
    def wait(ring, position, visible):
        """Wait for all but the newest groups."""
        wait_for_oldest()
        cuda.syncwarp()

    return Source(setup, aim, fetch, wait, release, stage_bytes_of(head_dim, shape), ring_bytes_of(head_dim, shape))


@functools.cache
def make_tma_source(head_dim, block_size, head_tiles, shape, plan):
    """Tiles by TMA."""
    block_of, _ = make_lookup(block_size)
    visible_keys, advance, keys, warps, stages = plan.visible_keys, plan.advance, shape.keys, shape.warps, shape.stages
    stage_bytes = stage_bytes_of(head_dim, shape)
    value_bytes, columns = stage_bytes // 2, head_dim // BOX_NUMBERS
    groups, box_bytes, row_words = keys // BOX_KEYS, BOX_KEYS * BOX_ROW_BYTES, BOX_ROW_BYTES // 4

    @cuda.jit(device=True)
    def barrier_of(ring, stage):
        """The mbarrier of the stage at this address."""
        return uint32(ring.base + stages * stage_bytes + quotient(stage - ring.base, stage_bytes) * 8)

    @cuda.jit(device=True)
    def setup(ring):
        """Make the ring's mbarriers."""
        if ring.lane == 0:
            for i in range(stages):
                mbarrier_init(uint32(ring.base + stages * stage_bytes + 8 * i), 1)
            fence_mbarrier_init()
        cuda.syncwarp()

    @cuda.jit(device=True)
    def copy_tile(cursor, ring, batch, cache):
        """Start copying this warp's boxes of the cursor's tile, but for those without visible keys; for one lane."""
        key_map, value_map = cache
        start, stop = visible_keys(cursor.sequence, batch)
        position = int32((cursor.first + cursor.tile) * (warps * keys) + ring.warp * keys)  # of the warp's first row
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
        """Start copying the cursor's tile, if any is left, and go on to the next."""
        if cursor.left > 0:
            if ring.lane == 0:
                copy_tile(cursor, ring, batch, cache)
            cursor = advance(cursor, 1, batch)
        return cursor

    @cuda.jit(device=True)
    def wait(ring, position, visible):
        """Wait for the oldest tile and clear its rows outside of the visible keys."""
        start, stop = visible
        mbarrier_wait_parity(barrier_of(ring, ring.stage), ring.parity)
        if position < start or position + keys > stop:
            word = uint32((ring.stage - ring.start) // 4)
            for row in range(keys):
                if position + row < start or position + row >= stop:
                    for column in range(2 * columns):  # of K, then of V
                        ring.words[uint32(word + (column * keys + row) * row_words + ring.lane)] = uint32(0)
            fence_proxy_async()  # before the copies that fill the stage again
        cuda.syncwarp()

    return Source(setup, aim, fetch, wait, release, stage_bytes, ring_bytes_of(head_dim, shape))
