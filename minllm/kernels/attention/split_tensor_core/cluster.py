"""Flash-Decoding of one sequence: the blocks that share a head form a cluster and merge through each other's shared memory.

A sequence alone is the case in which every microsecond counts: its keys are read in 2 to 30. split_tensor_core.py cuts its heads among
all multiprocessors, and their blocks leave their states in global memory, count themselves in, and the last to come reads them all:
three trips to the L2 cache, one after another. Blocks of a cluster write straight into each other's shared memory instead. Each of them
merges a slice of the head's output: one trip, and a barrier.

    1  every block takes its share of the head's keys: the rings, products and folds of split_tensor_core.py
    2  its warps' states are merged in shared memory; each slice of the result goes to the block that owns it
    3  the cluster's barrier; then every block merges the states of its slice, in the order of the keys, and writes the output

On an H200 (32/8 heads of 128, bfloat16; in brackets split_tensor_core.py, and cuDNN): 1024 keys 5.8 us (7.3, 7.5), 2048 7.4 (8.7, 8.6),
4096 10.1 (10.9, 11.5), 8192 16.3 (14.3, 15.4).

FLOPs and bytes of the cache: those of split_tensor_core.py. Nothing else is written to memory but the output.

How threads map to data: grid (splits * KV heads * head tiles), clusters of `splits` neighbours, each of the blocks with an equal share.

Source of distributed shared memory: PTX ISA, "Cluster of cooperative thread arrays".
"""

import functools
import math

import numpy as np
from numba import cuda, float32, int32, uint32

from minllm.kernels.attention.choice import suits_clusters
from minllm.kernels.attention.common.arguments import LOG2_E, check_arguments, check_single_tokens
from minllm.kernels.attention.common.online_softmax import finite_or_zero, reciprocal_or_zero
from minllm.kernels.attention.split_tensor_core.merge_parts import DIMS_AT_ONCE, make_merges, make_warp_merge, pitch_of
from minllm.kernels.attention.split_tensor_core.plan import (
    CURSOR_FIELDS,
    CUT_FIELDS,
    FIRST,
    HEAD,
    LEFT,
    SEQUENCE,
    TILE,
    make_fixed_plan,
    quotient,
    visible_keys,
)
from minllm.kernels.attention.split_tensor_core.shape import block_shared_bytes, capability_here, head_tiles_of, shape_for
from minllm.kernels.attention.split_tensor_core.tensor_ring import can_fetch, map_of
from minllm.kernels.attention.split_tensor_core.tiles import columns_of, make_block_steps, make_tile_loop, ring_of_a_warp
from minllm.kernels.attention.variants import HOPPER
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.ptx import barrier_cluster_arrive, barrier_cluster_wait, ex2, mapa, shared_address, st_shared_cluster_f32
from minllm.runtime.kernel import check, kernel, launch

MINUS_INFINITY = -math.inf
CLUSTER = 8  # blocks


@functools.cache
def make_cluster_merge(head_dim, heads, warps, splits):
    """(hand_out, merge_slice, slice_count): device functions for `heads` query heads in a cluster of `splits` blocks.

    received is the tuple (maxima [splits, heads], sums, outputs [splits, slice_count]) of shared arrays: what the blocks have sent.
    """
    threads = 32 * warps
    slice_count = -(-heads * head_dim // splits)
    merge_warps = make_warp_merge(warps)

    @cuda.jit(device=True)
    def hand_out(shared_states, received, rank, heads_left, scale):
        """Merge this block's warps and send each block of the cluster its slice, with the maxima and sums of all heads."""
        received_max, received_sum, received_out = received
        outputs = uint32(shared_address(received_out, rank * slice_count))
        maxima, sums = uint32(shared_address(received_max, rank * heads)), uint32(shared_address(received_sum, rank * heads))
        results = cuda.local.array(DIMS_AT_ONCE, float32)
        i = int32(cuda.threadIdx.x * DIMS_AT_ONCE)
        while i < heads_left * head_dim:
            head = uint32(quotient(i, head_dim))
            dim = uint32(i - head * head_dim)
            maximum, total = merge_warps(shared_states, head, dim, scale, results)
            for j in range(DIMS_AT_ONCE):
                owner = quotient(i + j, slice_count)
                st_shared_cluster_f32(mapa(uint32(outputs + 4 * (i + j - owner * slice_count)), uint32(owner)), results[j])
            to = quotient(dim, DIMS_AT_ONCE)  # the threads of a head tell a block each
            while to < splits:
                st_shared_cluster_f32(mapa(uint32(maxima + 4 * head), uint32(to)), maximum)
                st_shared_cluster_f32(mapa(uint32(sums + 4 * head), uint32(to)), total)
                to = int32(to + head_dim // DIMS_AT_ONCE)
            i = int32(i + threads * DIMS_AT_ONCE)

    @cuda.jit(device=True)
    def merge_slice(received, out, row, rank, first_head, heads_left, scale):
        """Merge what all blocks have sent and write this block's slice of the output."""
        received_max, received_sum, received_out = received
        i = int32(cuda.threadIdx.x)
        while i < slice_count and rank * slice_count + i < heads_left * head_dim:
            head = uint32(quotient(rank * slice_count + i, head_dim))
            maximum = float32(MINUS_INFINITY)
            for part in range(splits):
                maximum = max(maximum, received_max[part, head])
            shift = finite_or_zero(maximum)
            total, result = float32(0.0), float32(0.0)
            for part in range(splits):
                weight = ex2((received_max[part, head] - shift) * scale)
                total += weight * received_sum[part, head]
                result += weight * received_out[part, uint32(i)]
            dim = uint32(rank * slice_count + i - head * head_dim)
            out[uint32(row), uint32(first_head + head), dim] = result * reciprocal_or_zero(total)
            i = int32(i + threads)

    return hand_out, merge_slice, slice_count


@functools.cache
def make_cluster_kernel(dtype, head_dim, block_size, group, splits, shape):
    """(kernel, threads, dynamic shared bytes) for 16-bit `dtype`; splits: blocks of a cluster; shape: a SplitShape."""
    head_tiles, heads_here = head_tiles_of(group, head_dim)
    heads, warps, keys, tile, threads = columns_of(heads_here), shape.warps, shape.keys, shape.tile, 32 * shape.warps
    begin, _ = make_fixed_plan(tile, splits)
    setup, fill, take_tiles, load_query = make_tile_loop(dtype, head_dim, block_size, group, shape)
    prefetch_block_tables, heads_of, clear = make_block_steps(head_dim, group, shape)
    share_states, *_ = make_merges(head_dim, heads, warps)
    hand_out, merge_slice, slice_count = make_cluster_merge(head_dim, heads_here, warps, splits)
    shared_bytes, warp_bytes = ring_of_a_warp(head_dim, shape)
    by_engine, steps = shape.tensor_copies, -(-head_dim // 16)
    query_count, out_count, state_count = steps * heads // 4, steps * heads // 2, heads // 4
    state_shape, out_shape = (warps, heads_here), (warps, heads_here, pitch_of(head_dim))
    sent_shape, slice_shape = (splits, heads_here), (splits, slice_count)

    @kernel(launch_bounds=(threads, shape.blocks), dependent_launch=True)
    def split_cluster_kernel(
        query,  # [tokens, heads, head_dim]
        key_cache,  # [num_blocks, block_size, kv_heads, head_dim]
        value_cache,  # the same
        out,  # [tokens, heads, head_dim]
        query_start,  # [sequences + 1]
        context_lens,  # [sequences]
        block_tables,  # [sequences, max_blocks]
        scale,  # times log2(e): exponentials are to base 2
        sliding_window,
        key_map,  # of key_cache, or None: for tensor copies
        value_map,
    ):
        barrier_cluster_arrive()  # a block must have begun before others write into its shared memory
        wait_for_predecessors()
        rings = cuda.shared.array(0, uint32, alignment=1024)
        warp_max = cuda.shared.array(state_shape, float32)
        warp_sum = cuda.shared.array(state_shape, float32)
        warp_out = cuda.shared.array(out_shape, float32)
        received_max = cuda.shared.array(sent_shape, float32)
        received_sum = cuda.shared.array(sent_shape, float32)
        received_out = cuda.shared.array(slice_shape, float32)
        shared_states, received = (warp_max, warp_sum, warp_out), (received_max, received_sum, received_out)
        batch = (query_start, context_lens, sliding_window, 0, 0)
        if by_engine:
            cache = (key_map, value_map, block_tables)
        else:
            cache = (key_cache, value_cache, block_tables)
        warp, lane = int32(cuda.threadIdx.x // 32), int32(cuda.threadIdx.x % 32)
        line_heads, rank = int32(key_cache.shape[2] * head_tiles), int32(cuda.blockIdx.x % splits)
        ring_start = uint32(shared_address(rings, 0))
        ring = uint32(ring_start + warp * warp_bytes)

        prefetch_block_tables(block_tables)
        setup(ring, lane)
        ahead = cuda.local.array(CURSOR_FIELDS, int32)  # the tile to copy next
        cut = cuda.local.array(CUT_FIELDS, int32)
        begin(ahead, cut, line_heads, batch)
        sequence, tiles = ahead[SEQUENCE], ahead[LEFT]
        row = query_start[uint32(sequence)]
        has_row = query_start[uint32(sequence + 1)] > row
        visible = visible_keys(sequence, batch)
        position = int32((ahead[FIRST] + ahead[TILE]) * tile + warp * keys)
        first_head, heads_left = heads_of(ahead[HEAD])
        ring_state = fill(ahead, line_heads, batch, cache, warp, lane, ring)

        fragments = cuda.local.array(query_count, uint32)
        acc = cuda.local.array(out_count, float32)
        maxima = cuda.local.array(state_count, float32)
        sums = cuda.local.array(state_count, float32)
        clear(maxima, sums, acc, float32(MINUS_INFINITY))
        load_query(fragments, query, row, first_head, heads_left if has_row else 0, lane)
        state, places = (maxima, sums, acc), (rings, ring_start, ring, warp, lane)
        take_tiles(tiles, position, visible, fragments, state, True, ahead, line_heads, batch, cache, places, ring_state, scale)

        share_states(maxima, sums, acc, shared_states, heads_left)
        cuda.syncthreads()
        barrier_cluster_wait()
        hand_out(shared_states, received, rank, heads_left, scale)
        barrier_cluster_arrive()
        barrier_cluster_wait()
        if has_row:
            merge_slice(received, out, row, rank, first_head, heads_left, scale)

    return split_cluster_kernel, threads, shared_bytes


def choose_cluster(sizes, sm_count=132):
    """(blocks of a cluster, SplitShape) for a call that clusters are best for, else None."""
    if not suits_clusters(sizes, capability_here()):
        return None
    head_tiles, _ = head_tiles_of(sizes.group, sizes.head_dim)
    if 2 * sizes.kv_heads * head_tiles * CLUSTER > sm_count:
        return None
    return CLUSTER, cluster_shape(sizes, sm_count)


def cluster_shape(sizes, sm_count=132):
    """The SplitShape of blocks that also receive the states of their cluster."""
    _, heads = head_tiles_of(sizes.group, sizes.head_dim)
    sent_bytes = 4 * CLUSTER * (2 * heads + -(-heads * sizes.head_dim // CLUSTER))  # received from the other blocks
    by_tma = can_fetch(sizes.head_dim, sizes.block_size)
    return shape_for(sizes.head_dim, sizes.group, 1, block_shared_bytes() - sent_bytes, sm_count, by_tma)


def launch_clusters(inputs, sizes, scale, sliding_window, stream, splits, shape):
    """Launch the kernel on checked inputs of split_tensor_core.attention, `splits` blocks of this SplitShape for each head."""
    query, key_cache, value_cache, *_ = inputs
    made = make_cluster_kernel(str(query.dtype), sizes.head_dim, sizes.block_size, sizes.group, splits, shape)
    cluster_kernel, threads, shared_bytes = made
    maps = (map_of(key_cache), map_of(value_cache)) if shape.tensor_copies else (None, None)
    arguments = (*inputs, float(scale * LOG2_E), int(sliding_window), *maps)
    blocks = sizes.sequences * sizes.kv_heads * head_tiles_of(sizes.group, sizes.head_dim)[0] * splits
    launch(cluster_kernel, blocks, threads, arguments, stream, shared_bytes, (splits, 1, 1))


def workspace_shapes(query, key_cache, block_tables):
    """Clusters need no scratch memory."""
    return {}


def attention(
    query, key_cache, value_cache, out, query_start, context_lens, block_tables, scale, sliding_window=0, max_query_len=None,
    workspace=None, stream=None,
):  # fmt: skip
    """Attention of one new token per sequence, written into `out`, a cluster per KV head; arguments as in kernels/attention/__init__.py.

    split_tensor_core.attention launches clusters by itself where they are fastest. Raises KernelArgumentError for float32, for more than
    one new token per sequence, and on a GPU of another compute capability than 9.0.
    """
    inputs = (query, key_cache, value_cache, out, query_start, context_lens, block_tables)
    sizes = check_arguments(*inputs, scale, sliding_window, max_query_len)
    check_single_tokens("split_cluster", sizes, max_query_len)
    check(str(query.dtype) != "float32", "split_cluster takes float16 and bfloat16, not float32")
    check(isinstance(query, np.ndarray) or capability_here() == HOPPER, "split_cluster needs a GPU of compute capability 9.0")
    launch_clusters(inputs, sizes, scale, sliding_window, stream, CLUSTER, cluster_shape(sizes))
