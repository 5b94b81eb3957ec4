"""(docstring to come)"""

import functools
import math

from numba import cuda, float32, int32, uint32

from minllm.kernels.attention.arguments import LOG2_E, check_arguments, scratch_arrays, sizes_of
from minllm.kernels.attention.split_plan import CURSOR_FIELDS, CUT_FIELDS, FIRST, HEAD, LEFT, LINE, SEQUENCE, TILE, TILES, make_plan, quotient
from minllm.kernels.attention.split_ring import make_ring
from minllm.kernels.attention.split_state import make_merges, pitch_of
from minllm.kernels.attention.split_tile import make_tile_products
from minllm.kernels.attention.online_softmax import reciprocal_or_zero
from minllm.ptx import cp_async_commit_group, cp_async_wait_group_1, cp_async_wait_group_2, cp_async_wait_group_3, prefetch_l2, shared_address
from minllm.runtime.kernel import check, kernel, launch

MINUS_INFINITY = -math.inf
WAITS = {2: cp_async_wait_group_1, 3: cp_async_wait_group_2, 4: cp_async_wait_group_3}


@functools.cache
def make_kernel(dtype, head_dim, block_size, group, splits=None, warps=4, keys=16, stages=3, blocks_at_once=2):
    """(kernel, threads, shared bytes)"""
    head_tiles, heads_here = head_tiles_of(group, head_dim)
    heads = -(-heads_here // 8) * 8
    begin, advance, parts_of_head = make_plan(warps * keys, splits)
    copy_tile, stage_bytes = make_ring(head_dim, block_size, head_tiles, keys, warps)
    products = make_tile_products(dtype, head_dim, keys, heads)
    load_query, score_tile, mask_tile, fold_tile, multiply_values, score_count, out_count = products
    share_states, merge_warps, merge_parts = make_merges(head_dim, heads, warps)
    wait_for_oldest = WAITS[stages]
    threads, tile = 32 * warps, warps * keys
    ring_bytes = stages * stage_bytes
    shared_bytes = warps * ring_bytes
    query_count, state_count = 2 * -(-head_dim // 16) * (heads // 8), heads // 4
    state_shape, out_shape = (warps, heads_here), (warps, heads_here, pitch_of(head_dim))

    @cuda.jit(device=True)
    def write_zeros(out, query_start, context_lens, head_count):
        """Rows of sequences without keys; the blocks take a sequence each in turn."""
        sequence = uint32(cuda.blockIdx.x)
        while sequence < context_lens.shape[0]:
            row = query_start[sequence]
            if context_lens[sequence] == 0 and query_start[sequence + 1] > row:
                i = cuda.threadIdx.x
                while i < head_count * head_dim:
                    out[row, quotient(i, head_dim), uint32(i) % head_dim] = float32(0.0)
                    i += threads
            sequence += cuda.gridDim.x

    @kernel(launch_bounds=(threads, blocks_at_once))
    def split_tensor_core_kernel(
        query,  # [tokens, heads, head_dim]
        key_cache,  # [num_blocks, block_size, kv_heads, head_dim]
        value_cache,  # the same
        out,  # [tokens, heads, head_dim]
        part_max,  # [2 * blocks, heads of a block]
        part_sum,  # the same
        part_out,  # [2 * blocks, heads of a block, head_dim]
        arrivals,  # [blocks], zeros before and after
        query_start,  # [sequences + 1]
        context_lens,  # [sequences]
        block_tables,  # [sequences, max_blocks]
        scale,  # times log2(e): exponentials are to base 2
        sliding_window,
    ):
        shared = cuda.shared.array(0, uint32, alignment=128)
        warp_max = cuda.shared.array(state_shape, float32)
        warp_sum = cuda.shared.array(state_shape, float32)
        warp_out = cuda.shared.array(out_shape, float32)
        arrived = cuda.shared.array(1, int32)
        thread = int32(cuda.threadIdx.x)
        warp, lane = int32(thread // 32), int32(thread % 32)
        heads_in_all = int32(key_cache.shape[2] * head_tiles)
        ring = uint32(shared_address(shared, 0) + warp * ring_bytes)

        table_entry = uint32((cuda.blockIdx.x * threads + thread) * 32)  # all blocks together fetch the block tables, a line a thread
        if table_entry < block_tables.shape[0] * block_tables.shape[1]:
            prefetch_l2(block_tables, table_entry)
        ahead = cuda.local.array(CURSOR_FIELDS, int32)  # the tile to copy next
        now = cuda.local.array(CURSOR_FIELDS, int32)  # the tile to compute on
        cut = cuda.local.array(CUT_FIELDS, int32)
        begin(ahead, cut, heads_in_all, query_start, context_lens, sliding_window)
        for i in range(CURSOR_FIELDS):
            now[i] = ahead[i]
        line = cut[LINE]
        for stage in range(stages - 1):
            to = uint32(ring + stage * stage_bytes)
            copy_tile(ahead, context_lens, block_tables, key_cache, value_cache, sliding_window, warp, lane, to)
            cp_async_commit_group()
            advance(ahead, 1, heads_in_all, query_start, context_lens, sliding_window)
        stage = uint32(ring)
        free_stage = uint32(ring + (stages - 1) * stage_bytes)

        fragments = cuda.local.array(query_count, uint32)
        acc = cuda.local.array(out_count, float32)
        scores = cuda.local.array(score_count, float32)
        maxima = cuda.local.array(state_count, float32)
        sums = cuda.local.array(state_count, float32)
        while now[LEFT] > 0:  # a head, or a part of one
            sequence = now[SEQUENCE]
            row = query_start[uint32(sequence)]
            stop = int32(context_lens[uint32(sequence)])
            start = int32(max(0, stop - sliding_window) if sliding_window > 0 else 0)
            kv_head = quotient(now[HEAD], head_tiles)
            head_tile = int32(now[HEAD] - kv_head * head_tiles)
            first_head = int32(kv_head * group + head_tile * heads_here)
            heads_left = int32(min(heads_here, group - head_tile * heads_here))
            load_query(fragments, query, row, first_head, heads_left, lane)
            for i in range(out_count):
                acc[i] = float32(0.0)
            for i in range(state_count):
                maxima[i] = float32(MINUS_INFINITY)
                sums[i] = float32(0.0)
            tiles = int32(min(now[LEFT], now[TILES] - now[TILE]))
            position = int32((now[FIRST] + now[TILE]) * tile + warp * keys)
            for _ in range(tiles):
                copy_tile(ahead, context_lens, block_tables, key_cache, value_cache, sliding_window, warp, lane, free_stage)
                cp_async_commit_group()
                advance(ahead, 1, heads_in_all, query_start, context_lens, sliding_window)
                wait_for_oldest()
                cuda.syncwarp()
                score_tile(scores, fragments, stage, lane)
                mask_tile(scores, position, start, stop, lane)
                fold_tile(scores, maxima, sums, acc, scale)
                multiply_values(acc, scores, stage, lane)
                cuda.syncwarp()  # all lanes have read the stage, which is filled next
                position = int32(position + tile)
                free_stage = stage
                stage = uint32(stage + stage_bytes)
                if stage == ring + ring_bytes:
                    stage = ring

            share_states(maxima, sums, acc, warp_max, warp_sum, warp_out, heads_left, warp, lane)
            cuda.syncthreads()
            whole = tiles == now[TILES]
            place = uint32(2 * cuda.blockIdx.x + (0 if line == cut[LINE] else 1))
            i = thread
            while i < heads_left * head_dim:
                head = quotient(i, head_dim)
                dim = int32(i - head * head_dim)
                maximum, total, result = merge_warps(warp_max, warp_sum, warp_out, head, dim, scale)
                if whole:
                    out[uint32(row), uint32(first_head + head), uint32(dim)] = result * reciprocal_or_zero(total)
                else:
                    part_out[place, uint32(head), uint32(dim)] = result
                    if dim == 0:
                        part_max[place, uint32(head)] = maximum
                        part_sum[place, uint32(head)] = total
                i += threads
            if not whole:
                first_place, parts = parts_of_head(now, cut, line)
                cuda.syncthreads()
                if thread == 0:
                    cuda.threadfence()  # what the block has written is seen before its arrival
                    arrived[0] = cuda.atomic.add(arrivals, uint32(first_place) // 2, 1)
                    cuda.threadfence()  # and what others have written, after theirs
                cuda.syncthreads()
                if arrived[0] == parts - 1:
                    states = (part_max, part_sum, part_out)
                    merge_parts(states, first_place, parts, out, row, first_head, heads_left, scale, warp, lane)
                    if thread == 0:
                        arrivals[uint32(first_place) // 2] = 0
            cuda.syncthreads()
            line = int32(line + tiles)
            advance(now, tiles, heads_in_all, query_start, context_lens, sliding_window)
        write_zeros(out, query_start, context_lens, query.shape[1])

    return split_tensor_core_kernel, threads, shared_bytes


def head_tiles_of(group, head_dim):
    """(blocks that share a KV head's query heads, heads of each): at most 16, 8 for large heads, whose accumulators fill the registers."""
    tiles = -(-group // (16 if head_dim <= 128 else 8))
    return tiles, -(-group // tiles)


def grid_of(sizes, splits, sm_count, shape):
    """Blocks of the grid."""
    head_tiles, _ = head_tiles_of(sizes.group, sizes.head_dim)
    pairs = sizes.sequences * sizes.kv_heads * head_tiles
    if splits:
        return pairs * splits
    warps, keys, _, blocks_at_once = shape
    return min(blocks_at_once * sm_count, pairs * -(-sizes.max_context_len // (warps * keys)))


def workspace_shapes(query, key_cache, block_tables, splits=None, sm_count=132, shape=None):
    """The states of cut heads: name -> (shape, dtype). Pass the same `splits` or `sm_count` here and to `attention`."""
    sizes = sizes_of(query, key_cache, block_tables)
    shape = shape or shape_for(sizes)
    blocks = grid_of(sizes, splits, sm_count, shape)
    _, heads = head_tiles_of(sizes.group, sizes.head_dim)
    return {
        "part_max": ((2 * blocks, heads), "float32"),
        "part_sum": ((2 * blocks, heads), "float32"),
        "part_out": ((2 * blocks, heads, sizes.head_dim), "float32"),
        "arrivals": ((blocks,), "int32"),
    }


def shape_for(sizes):
    """(warps, keys of a warp, stages, blocks a multiprocessor)."""
    return 4, 16, 3, 2


def attention(
    query,
    key_cache,
    value_cache,
    out,
    query_start,
    context_lens,
    block_tables,
    scale,
    sliding_window=0,
    max_query_len=None,
    workspace=None,
    stream=None,
    splits=None,
    sm_count=132,
    shape=None,
):
    """Attention of one new token a sequence over a paged cache, written into `out`; arguments as in kernels/attention/__init__.py."""
    inputs = (query, key_cache, value_cache, out, query_start, context_lens, block_tables)
    sizes = check_arguments(*inputs, scale, sliding_window, max_query_len)
    check(
        max_query_len in (None, 1) and sizes.tokens <= sizes.sequences,
        f"split_tensor_core takes one new token a sequence; given {sizes.tokens} tokens of {sizes.sequences} sequences with max_query_len "
        f"{max_query_len}: use flash_attention_2",
    )
    shape = shape or shape_for(sizes)
    scratch = scratch_arrays(workspace, workspace_shapes(query, key_cache, block_tables, splits, sm_count, shape), query)
    states = tuple(scratch[name] for name in ("part_max", "part_sum", "part_out", "arrivals"))
    chosen, threads, shared_bytes = make_kernel(str(query.dtype), sizes.head_dim, sizes.block_size, sizes.group, splits, *shape)
    numbers = (float(scale * LOG2_E), int(sliding_window))
    arguments = (query, key_cache, value_cache, out, *states, query_start, context_lens, block_tables, *numbers)
    launch(chosen, grid_of(sizes, splits, sm_count, shape), threads, arguments, stream, shared_bytes)
