"""Flash-Decoding on tensor cores: the fastest kernel for decode steps.

As in split_kv.py, the context is split over many blocks, each key is read once for all query heads of its KV head, and states are merged.
What counts is to keep enough bytes in flight from memory (Little's law: 4.8 TB/s for a microsecond are 36 KB per SM), and to lose no time
before the first byte and after the last. A block takes a run of tiles, of many short heads or of a part of a long one:

    begin the plan, start filling the rings
    for each head of the run, or part of a head:
        for each tile:  start copying a later tile, wait for this one, S = K q, mask, P = softmax S, O += V P
        merge the warps' states; write the output, or a part of it, which the last block of the head merges

The rings continue across the end of a head, so that memory is not idle while a head is finished. One idea per file:

    plan          all contexts are one line of tiles, cut into runs on the device: fair_plan, or fixed_plan for batch invariance
    tile_loop     a warp's loop over the tiles of a head
    cp_async_ring, tma_ring    a warp's own ring of tiles in shared memory, and what fills it
    tile          both matmuls on tensor cores, and softmax
    warp_states, merge_parts   the last block of a head to arrive merges its parts: no second launch, and always in the same order
    decode_step   checks a call, and chooses between this kernel and cluster.py, the one for one short sequence

FLOPs: 4 * 8 * head_dim per key and KV head on tensor cores, however many of the 8 columns the group fills. Bytes: 2 * kv_heads * head_dim
* itemsize per key, read once. A head that is cut into n parts adds n * group * (head_dim + 2) * 4 bytes, written and read.

Measured: docs/results.md, rows split_tensor_core, beside cuDNN; docs/split-decode.md says what mattered and what did not.
"""

import functools

from numba import cuda, float32, int32, uint32

from minllm.kernels.attention.split_tensor_core import cp_async_ring, tma_ring
from minllm.kernels.attention.split_tensor_core.merge_parts import Parts, make_merges
from minllm.kernels.attention.split_tensor_core.plan import Batch
from minllm.kernels.attention.split_tensor_core.tile import Operands, State, make_products, make_softmax
from minllm.kernels.attention.split_tensor_core.tile_loop import Span, make_steps
from minllm.kernels.attention.split_tensor_core.tma_ring import map_of
from minllm.kernels.attention.split_tensor_core.warp_states import WarpStates, pitch_of
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.ptx import cp_async_wait_group_0
from minllm.runtime.kernel import kernel, launch


@functools.cache
def make_kernel(sizes, plan, softmax=make_softmax):
    """(kernel, threads, dynamic shared bytes) for BlockSizes and a Plan; softmax: makes the Softmax, e.g. tile.make_softmax."""
    shape, head_dim, head_tiles, heads_here = sizes.shape, sizes.head_dim, sizes.head_tiles, sizes.heads
    warps, keys, tile, threads, by_tma = shape.warps, shape.keys, shape.tile, 32 * shape.warps, shape.tensor_copies
    query_count, out_count, state_count = 2 * sizes.steps * sizes.columns, 4 * sizes.steps * sizes.columns, 2 * sizes.columns
    load_early = query_count <= 16  # the registers have room for the queries of two heads: this one's and the next one's
    source, products, softmax = (tma_ring if by_tma else cp_async_ring).make_source(sizes, plan), make_products(sizes), softmax(sizes)
    open_ring, heads_of, fill, take_tiles = make_steps(sizes.group, head_dim, shape, source, products, softmax)
    write_whole, finish_part, write_zeros, _ = make_merges(head_dim, warps, plan)
    state_shape, out_shape = (warps, heads_here), (warps, heads_here, pitch_of(head_dim))
    failed, guarded = softmax.failed, softmax.failed is not None

    @kernel(launch_bounds=(threads, shape.blocks), dependent_launch=True)
    def split_tensor_core_kernel(
        query,  # [tokens, heads, head_dim]
        key_cache,  # [num_blocks, block_size, kv_heads, head_dim]
        value_cache,  # the same
        out,  # [tokens, heads, head_dim]
        lse,  # [tokens, heads]: the log-sum-exp of every row, to base 2; or None
        part_max,  # [2 * blocks, heads of a block]
        part_sum,  # the same
        part_out,  # [2 * blocks, heads of a block, head_dim]
        arrivals,  # [blocks], zeros before and after
        query_start,  # [sequences + 1]
        context_lens,  # [sequences]
        block_tables,  # [sequences, max_blocks]
        scale,  # includes log2(e): exponentials are base 2
        sliding_window,
        phi,  # the unified maximum, in units of q . k; or None
        key_map,  # key_cache's tensor map, or None without TMA
        value_map,
    ):
        wait_for_predecessors()
        if by_tma:
            cache = (key_map, value_map)
        else:
            cache = (key_cache, value_cache)
        batch = Batch(query_start, context_lens, block_tables, int32(key_cache.shape[2] * head_tiles), sliding_window)
        parts = Parts(part_max, part_sum, part_out, arrivals)
        operands = Operands(cuda.local.array(query_count, uint32), cuda.local.array(query_count, uint32))
        maxima, sums = cuda.local.array(state_count, float32), cuda.local.array(state_count, float32)
        state = State(maxima, sums, cuda.local.array(out_count, float32), cuda.local.array(1, float32))
        warp_max = cuda.shared.array(state_shape, float32)
        warp_sum = cuda.shared.array(state_shape, float32)
        warp_out = cuda.shared.array(out_shape, float32)
        arrived = cuda.shared.array(1, int32)
        states = WarpStates(warp_max, warp_sum, warp_out)

        # The block's run of the line, and the first tiles on their way.
        ring = open_ring(block_tables)
        now, cut = plan.begin(batch)
        ahead, pipeline = fill(now, ring, batch, cache)
        line = cut.line
        rescued = False  # whether these tiles are computed again, with the running maximum (ladder/unified_maximum.py)
        if load_early and now.left > 0:
            products.load_query(operands, query, heads_of(now, batch), ring.lane)
        while now.left > 0:  # a head, or a part of one
            # The queries of this head, and those of the next one while this head's tiles are computed.
            heads, tiles = heads_of(now, batch), int32(min(now.left, now.tiles - now.tile))
            position = int32((now.first + now.tile) * tile + ring.warp * keys)
            span = Span(tiles, position, plan.visible_keys(now.sequence, batch))
            softmax.clear(state, phi, rescued)
            if not load_early:
                products.load_query(operands, query, heads, ring.lane)
            products.prepare(operands, state, now, cache, ring.lane)
            following = plan.advance(now, tiles, batch)
            if load_early and following.left > 0:
                products.load_query(operands, query, heads_of(following, batch), ring.lane)

            # The state of each warp's keys.
            ahead, pipeline = take_tiles(span, operands, state, rescued, ahead, ring, pipeline, batch, cache, scale)

            # The states of the warps meet in shared memory.
            softmax.share(state, operands, states, heads, ring)
            cuda.syncthreads()
            if guarded:
                if not rescued and cuda.syncthreads_or(failed(state, states, heads)):
                    rescued = True
                    cp_async_wait_group_0()  # tiles fetched ahead are discarded and fetched again
                    cuda.syncwarp()
                    ahead, pipeline = fill(now, ring, batch, cache)
                    if load_early:
                        products.load_query(operands, query, heads, ring.lane)
                    continue
                rescued = False

            # The output of a whole head, or a part of it, to memory.
            if tiles == now.tiles:
                write_whole(states, out, lse, heads, scale)
            else:
                finish_part(states, now, cut, line, parts, arrived, out, lse, heads, scale)
            cuda.syncthreads()  # all threads have read the shared states
            line = int32(line + tiles)
            now = following
        write_zeros(out, lse, batch)

    return split_tensor_core_kernel, threads, warps * sizes.ring_bytes


def launch_kernel(inputs, lse, states, numbers, sizes, plan, softmax, blocks, stream):
    """Launch the kernel of these BlockSizes on checked arrays. states: the arrays of Parts; numbers: scale, sliding_window and phi."""
    query, key_cache, value_cache, out, *batch = inputs
    chosen, threads, shared_bytes = make_kernel(sizes, plan, softmax)
    maps = (map_of(key_cache), map_of(value_cache)) if sizes.shape.tensor_copies else (None, None)
    arguments = (query, key_cache, value_cache, out, lse, *states, *batch, *numbers, *maps)
    launch(chosen, blocks, threads, arguments, stream, shared_bytes)
