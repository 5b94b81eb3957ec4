"""What a block of split_tensor_core.py and cluster.py does with a run of neighbouring tiles of one head, from the ring to the state.

A warp waits for its part of the oldest tile in its ring, multiplies, folds the scores and multiplies again, and has the stage that it has
emptied filled with the tile that comes `stages - 1` later. Nothing in this loop waits for another warp.

The ring's state is the tuple (stage, free_stage, parity): the shared addresses of the oldest tile and of the stage that is filled next,
and the parity of the oldest tile's mbarrier (tensor_ring.py).
"""

import functools
import math

from numba import cuda, float32, int32, uint32

from minllm.kernels.attention.split_tensor_core.fold import make_folds
from minllm.kernels.attention.split_tensor_core.plan import quotient
from minllm.kernels.attention.split_tensor_core.ring import make_ring, stage_bytes_of
from minllm.kernels.attention.split_tensor_core.shape import head_tiles_of, ring_bytes_of
from minllm.kernels.attention.split_tensor_core.tensor_ring import make_tensor_ring, tensor_stage_bytes_of
from minllm.kernels.attention.split_tensor_core.tile import make_tile_products
from minllm.ptx import prefetch_l2

MINUS_INFINITY = -math.inf


def columns_of(heads_here):
    """Query heads of a block as mma counts them: tiles of 8 columns."""
    return -(-heads_here // 8) * 8


@functools.cache
def make_tile_loop(dtype, head_dim, block_size, group, shape, unified=False):
    """(setup, fill, take_tiles, load_query): device functions for blocks of this SplitShape. unified: see fold.py."""
    head_tiles, heads_here = head_tiles_of(group, head_dim)
    heads, keys, tile, stages, by_engine = columns_of(heads_here), shape.keys, shape.tile, shape.stages, shape.tensor_copies
    ring_sizes = (head_dim, block_size, head_tiles, keys, shape.warps, stages)
    setup, fetch, wait = make_tensor_ring(*ring_sizes) if by_engine else make_ring(*ring_sizes)
    load_query, score_tile, mask_tile, multiply_values = make_tile_products(dtype, head_dim, keys, heads, by_engine)
    fold_running, fold_unified = make_folds(head_dim, keys, heads)
    stage_bytes = tensor_stage_bytes_of(head_dim, keys) if by_engine else stage_bytes_of(head_dim, keys)
    ring_bytes, score_count = stages * stage_bytes, keys * heads // 32

    @cuda.jit(device=True)
    def fill(ahead, line_heads, batch, cache, warp, lane, ring):
        """Start copying the first tiles from the cursor `ahead` on, all but one that the ring holds; returns the ring's state."""
        for stage in range(stages - 1):
            fetch(ahead, line_heads, batch, cache, warp, lane, ring, uint32(ring + stage * stage_bytes))
        return ring, uint32(ring + ring_bytes - stage_bytes), uint32(0)

    @cuda.jit(device=True)
    def take_tiles(tiles, position, visible, fragments, state, running, ahead, line_heads, batch, cache, places, ring_state, scale):
        """Fold `tiles` tiles, whose first key of this warp is at `position`, into the state (maxima, sums, acc).

        visible: (first, one past the last) visible key. running: whether the maximum runs. places: (the block's shared memory as words, its
        shared address, that of the warp's ring, warp, lane). Returns the ring's state and the largest exponent met with a unified maximum.
        """
        maxima, sums, acc = state
        start, stop = visible
        rings, ring_start, ring, warp, lane = places
        stage, free_stage, parity = ring_state
        scores = cuda.local.array(score_count, float32)
        highest = float32(MINUS_INFINITY)
        for _ in range(tiles):
            fetch(ahead, line_heads, batch, cache, warp, lane, ring, free_stage)
            wait(rings, ring_start, ring, stage, parity, position, start, stop, lane)
            score_tile(scores, fragments, stage, lane)
            mask_tile(scores, position, start, stop, lane)
            if unified and not running:
                highest = fold_unified(scores, maxima, sums, highest, scale)
            else:
                fold_running(scores, maxima, sums, acc, scale)
            multiply_values(acc, scores, stage, lane)
            cuda.syncwarp()  # all lanes have read the stage, which is filled next
            position = int32(position + tile)
            free_stage = stage
            stage = uint32(stage + stage_bytes)
            if stage == ring + ring_bytes:
                stage, parity = ring, uint32(parity ^ 1)
        return (stage, free_stage, parity), highest

    return setup, fill, take_tiles, load_query


@functools.cache
def make_block_steps(head_dim, group, shape):
    """(prefetch_block_tables, heads_of, clear): device functions of a block of this SplitShape."""
    head_tiles, heads_here = head_tiles_of(group, head_dim)
    threads, heads = 32 * shape.warps, columns_of(heads_here)
    out_count, state_count = -(-head_dim // 16) * heads // 2, heads // 4

    @cuda.jit(device=True)
    def prefetch_block_tables(block_tables):
        """All blocks together have the tables fetched to the L2 cache, a line a thread, while the plan is made."""
        entry = uint32((cuda.blockIdx.x * threads + cuda.threadIdx.x) * 32)
        if entry < block_tables.shape[0] * block_tables.shape[1]:
            prefetch_l2(block_tables, entry)

    @cuda.jit(device=True)
    def heads_of(head):
        """(first query head, query heads) of a head of the line."""
        kv_head = quotient(head, head_tiles)
        head_tile = int32(head - kv_head * head_tiles)
        return int32(kv_head * group + head_tile * heads_here), int32(min(heads_here, group - head_tile * heads_here))

    @cuda.jit(device=True)
    def clear(maxima, sums, acc, maximum):
        """The state of no keys, with -inf or a unified maximum."""
        for i in range(out_count):
            acc[i] = float32(0.0)
        for i in range(state_count):
            maxima[i] = maximum
            sums[i] = float32(0.0)

    return prefetch_block_tables, heads_of, clear


def ring_of_a_warp(head_dim, shape):
    """(dynamic shared bytes of a block, bytes from one warp's ring to the next)."""
    shared_bytes = ring_bytes_of(head_dim, shape)
    return shared_bytes, shared_bytes // shape.warps
