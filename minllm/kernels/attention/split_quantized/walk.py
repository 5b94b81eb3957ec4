"""A block's loop over its run of tiles of codes.

    begin the plan, start filling the rings
    for each head of the run, or part of a head:
        the tiles of the head (tile_loop.py)
        merge the warps' states; write the output, or a part of it, which the last block of the head merges (merge_parts.py)

The loop is that of split_tensor_core.py, with three differences: a producer warp may fill the rings of the others; rows without keys are
written before the first tile arrives; and with two buffers for the warps' states, one is written while the other is read.
"""

import functools

from numba import cuda, float32, int32, uint32

from minllm.kernels.attention.split_tensor_core.block_sizes import head_tiles_of
from minllm.kernels.attention.split_tensor_core.merge_parts import make_merges
from minllm.kernels.attention.split_tensor_core.tile_loop import Span, make_steps
from minllm.kernels.attention.split_tensor_core.warp_states import WarpStates, pitch_of


@functools.cache
def make_walk(group, head_dim, shape, plan, source, aim, produce, products, softmax, load_early):
    """walk(query, cache, batch, out, lse, parts, operands, state, scale), a device function for blocks of a SplitShape.

    aim(cursor, batch, ring, cache): what the source fetches first. produce(cursor, ring, batch, cache): a producer warp's loop, or None.
    load_early: load the queries of the next head while the tiles of this head are computed.
    """
    warps, keys, tile, turns, has_producer = shape.warps, shape.keys, shape.tile, shape.turns, produce is not None
    _, heads_here = head_tiles_of(group, head_dim)
    state_shape, out_shape = (turns, warps, heads_here), (turns, warps, heads_here, pitch_of(head_dim))
    open_ring, heads_of, fill, take_tiles = make_steps(group, head_dim, shape, source, products, softmax)
    write_whole, finish_part, write_zeros, synchronize = make_merges(head_dim, warps, plan, has_producer)

    @cuda.jit(device=True)
    def walk(query, cache, batch, out, lse, parts, operands, state, scale):
        all_max = cuda.shared.array(state_shape, float32)
        all_sum = cuda.shared.array(state_shape, float32)
        all_out = cuda.shared.array(out_shape, float32)
        arrived = cuda.shared.array(1, int32)
        # The block's run of the line, and the first tiles on their way.
        ring = open_ring(batch.block_tables)
        now, cut = plan.begin(batch)
        if has_producer:
            cuda.syncthreads()  # all rings' barriers are made
            if ring.warp == warps:
                produce(now, ring, batch, cache)
                return
        ahead, pipeline = fill(aim(now, batch, ring, cache), ring, batch, cache)
        write_zeros(out, lse, batch)  # rows without keys, before the first tile arrives
        line, turn = cut.line, uint32(0)
        if load_early and now.left > 0:
            products.load_query(operands, query, heads_of(now, batch), ring.lane)
        while now.left > 0:  # a head, or a part of one
            # The queries of this head, and those of the next one while this head's tiles are computed.
            heads, tiles = heads_of(now, batch), int32(min(now.left, now.tiles - now.tile))
            position = int32((now.first + now.tile) * tile + ring.warp * keys)
            span = Span(tiles, position, plan.visible_keys(now.sequence, batch))
            softmax.clear(state, int32(0), False)
            if not load_early:
                products.load_query(operands, query, heads, ring.lane)
            products.prepare(operands, state, now, cache, ring.lane)
            following = plan.advance(now, tiles, batch)
            if load_early and following.left > 0:
                products.load_query(operands, query, heads_of(following, batch), ring.lane)
            ahead, pipeline = take_tiles(span, operands, state, False, ahead, ring, pipeline, batch, cache, scale)

            # The states of the warps meet in shared memory.
            states = WarpStates(all_max[turn], all_sum[turn], all_out[turn])
            softmax.share(state, operands, states, heads, ring)
            synchronize()
            # The output of a whole head, or a part of it, to memory.
            if tiles == now.tiles:
                write_whole(states, out, lse, heads, scale)
            else:
                finish_part(states, now, cut, line, parts, arrived, out, lse, heads, scale)
            if turns == 2:  # the next head's states go to the other buffer, which no thread reads
                turn = uint32(1 - turn)
            else:
                synchronize()  # all threads have read the shared states
            line = int32(line + tiles)
            now = following

    return walk
