"""Flash-Decoding of one short sequence: one cluster of blocks per head.

With a single sequence every microsecond counts: its keys are read in 2 to 30 µs. split_tensor_core.py splits its heads among all SMs;
their blocks write their states to global memory, increment a count, and the last to arrive reads them all: three trips to the L2
cache, one after another. Blocks of a cluster write directly into each other's shared memory instead, and each merges a slice of the head's
output: one trip, and a barrier.

    1  every block processes its share of the head's keys: take_tiles of tile_loop.py
    2  its warps' states are merged in shared memory; each slice of the result is sent to the block that owns it
    3  the cluster's barrier; then every block merges the states of its slice, in the order of the keys, and writes the output

FLOPs and bytes of the cache: those of split_tensor_core.py. Only the output is written to memory.

Threads to data: grid (splits * KV heads * head tiles), clusters of `splits` neighbouring blocks with equal shares.

Source for distributed shared memory: PTX ISA, "Cluster of cooperative thread arrays".
"""

import functools
from typing import NamedTuple

from numba import cuda, float32, int32, uint32

from minllm.kernels.attention.common.online_softmax import MINUS_INFINITY, finite_or_zero, reciprocal_or_zero
from minllm.kernels.attention.split_tensor_core import cp_async_ring, tma_ring
from minllm.kernels.attention.split_tensor_core.fixed_plan import make_fixed_plan
from minllm.kernels.attention.split_tensor_core.plan import Batch, quotient
from minllm.kernels.attention.split_tensor_core.tile import Operands, State, make_products, make_softmax
from minllm.kernels.attention.split_tensor_core.tile_loop import Heads, Span, make_steps
from minllm.kernels.attention.split_tensor_core.tma_ring import map_of
from minllm.kernels.attention.split_tensor_core.warp_states import VECTOR, WarpStates, make_warp_merge, pitch_of
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.ptx import barrier_cluster_arrive, barrier_cluster_wait, ex2, mapa, shared_address, st_shared_cluster_f32
from minllm.runtime.array_protocol import Array
from minllm.runtime.kernel import kernel, launch


class Received(NamedTuple):
    """The states that the blocks of a cluster have sent to this block, in shared memory."""

    maxima: Array  # [splits, heads]
    sums: Array  # the same shape
    outs: Array  # [splits, slice_count]


@functools.cache
def make_cluster_merge(head_dim, heads, warps, splits):
    """(hand_out, merge_slice, slice_count): device functions for `heads` query heads in a cluster of `splits` blocks."""
    threads = 32 * warps
    slice_count = -(-heads * head_dim // splits)
    merge_warps = make_warp_merge(warps)

    @cuda.jit(device=True)
    def hand_out(states, received, rank, left, scale):
        """Merge this block's warps and send each block of the cluster its slice, with the maxima and sums of all heads."""
        outputs = uint32(shared_address(received.outs, rank * slice_count))
        maxima, sums = uint32(shared_address(received.maxima, rank * heads)), uint32(shared_address(received.sums, rank * heads))
        results = cuda.local.array(VECTOR, float32)
        i = int32(cuda.threadIdx.x * VECTOR)
        while i < left * head_dim:
            head = uint32(quotient(i, head_dim))
            dim = uint32(i - head * head_dim)
            maximum, total = merge_warps(states, head, dim, scale, results)
            for j in range(VECTOR):
                owner = quotient(i + j, slice_count)
                st_shared_cluster_f32(mapa(uint32(outputs + 4 * (i + j - owner * slice_count)), uint32(owner)), results[j])
            to = quotient(dim, VECTOR)  # each thread of a head sends maximum and sum to one block
            while to < splits:
                st_shared_cluster_f32(mapa(uint32(maxima + 4 * head), uint32(to)), maximum)
                st_shared_cluster_f32(mapa(uint32(sums + 4 * head), uint32(to)), total)
                to = int32(to + head_dim // VECTOR)
            i = int32(i + threads * VECTOR)

    @cuda.jit(device=True)
    def merge_slice(received, out, line_heads, rank, scale):
        """Merge the states that all blocks have sent, and write this block's slice of the output."""
        i = int32(cuda.threadIdx.x)
        while i < slice_count and rank * slice_count + i < line_heads.left * head_dim:
            head = uint32(quotient(rank * slice_count + i, head_dim))
            maximum = float32(MINUS_INFINITY)
            for part in range(splits):
                maximum = max(maximum, received.maxima[part, head])
            shift = finite_or_zero(maximum)
            total, result = float32(0.0), float32(0.0)
            for part in range(splits):
                weight = ex2((received.maxima[part, head] - shift) * scale)
                total += weight * received.sums[part, head]
                result += weight * received.outs[part, uint32(i)]
            dim = uint32(rank * slice_count + i - head * head_dim)
            out[uint32(line_heads.row), uint32(line_heads.first + head), dim] = result * reciprocal_or_zero(total)
            i = int32(i + threads)

    return hand_out, merge_slice, slice_count


@functools.cache
def make_cluster_kernel(sizes, splits):
    """(kernel, threads, dynamic shared bytes) for BlockSizes; splits: blocks per cluster."""
    shape, head_dim, head_tiles, heads_here = sizes.shape, sizes.head_dim, sizes.head_tiles, sizes.heads
    warps, keys, tile, threads, by_tma = shape.warps, shape.keys, shape.tile, 32 * shape.warps, shape.tensor_copies
    query_count, out_count, state_count = 2 * sizes.steps * sizes.columns, 4 * sizes.steps * sizes.columns, 2 * sizes.columns
    plan, products, softmax = make_fixed_plan(tile, splits), make_products(sizes), make_softmax(sizes)
    source = (tma_ring if by_tma else cp_async_ring).make_source(sizes, plan)
    open_ring, heads_of, fill, take_tiles = make_steps(sizes.group, head_dim, shape, source, products, softmax)
    hand_out, merge_slice, slice_count = make_cluster_merge(head_dim, heads_here, warps, splits)
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
        scale,  # includes log2(e): exponentials are base 2
        sliding_window,
        key_map,  # key_cache's tensor map, or None without TMA
        value_map,
    ):
        barrier_cluster_arrive()  # a block must have started before others write into its shared memory
        wait_for_predecessors()
        warp_max = cuda.shared.array(state_shape, float32)
        warp_sum = cuda.shared.array(state_shape, float32)
        warp_out = cuda.shared.array(out_shape, float32)
        received_max = cuda.shared.array(sent_shape, float32)
        received_sum = cuda.shared.array(sent_shape, float32)
        received_out = cuda.shared.array(slice_shape, float32)
        states, received = WarpStates(warp_max, warp_sum, warp_out), Received(received_max, received_sum, received_out)
        if by_tma:
            cache = (key_map, value_map)
        else:
            cache = (key_cache, value_cache)
        batch = Batch(query_start, context_lens, block_tables, int32(key_cache.shape[2] * head_tiles), sliding_window)
        rank = int32(cuda.blockIdx.x % splits)

        # This block's share of the head, and the first tiles on their way.
        ring = open_ring(block_tables)
        now, _ = plan.begin(batch)
        heads = heads_of(now, batch)
        has_row = query_start[uint32(now.sequence + 1)] > heads.row
        position = int32((now.first + now.tile) * tile + ring.warp * keys)
        span = Span(now.left, position, plan.visible_keys(now.sequence, batch))
        ahead, pipeline = fill(now, ring, batch, cache)

        # The state of each warp's keys.
        operands = Operands(cuda.local.array(query_count, uint32), cuda.local.array(query_count, uint32))
        maxima, sums = cuda.local.array(state_count, float32), cuda.local.array(state_count, float32)
        state = State(maxima, sums, cuda.local.array(out_count, float32), maxima)
        softmax.clear(state, 0, True)
        products.load_query(operands, query, Heads(heads.row, heads.first, heads.left if has_row else int32(0)), ring.lane)
        products.prepare(operands, state, now, cache, ring.lane)
        take_tiles(span, operands, state, True, ahead, ring, pipeline, batch, cache, scale)

        # Slices of the block's state to their owners, and the merge of this block's slice.
        softmax.share(state, operands, states, heads, ring)
        cuda.syncthreads()
        barrier_cluster_wait()
        hand_out(states, received, rank, heads.left, scale)
        barrier_cluster_arrive()
        barrier_cluster_wait()
        if has_row:
            merge_slice(received, out, heads, rank, scale)

    return split_cluster_kernel, threads, warps * sizes.ring_bytes


def launch_kernel(inputs, numbers, sizes, splits, blocks, stream):
    """Launch the kernel of these BlockSizes on checked arrays, in clusters of `splits` blocks. numbers: scale and sliding_window."""
    _, key_cache, value_cache, *_ = inputs
    chosen, threads, shared_bytes = make_cluster_kernel(sizes, splits)
    maps = (map_of(key_cache), map_of(value_cache)) if sizes.shape.tensor_copies else (None, None)
    launch(chosen, blocks, threads, (*inputs, *numbers, *maps), stream, shared_bytes, (splits, 1, 1))
