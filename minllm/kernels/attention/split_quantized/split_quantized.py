"""Flash-Decoding over a quantised KV cache: codes are read from memory, and codes are what the tensor cores multiply.

The frame is split_tensor_core.py's: a ring of tiles for every warp, a line of tiles cut into fair shares, parts of heads merged in the
same launch. What differs is what a tile is, and what is done with it, each part in a file of its own:

    split_code_ring   codes and their scales travel as they lie in memory
    split_code_tensor_ring   the same by the copy engine, which a warp of its own keeps busy
    split_codes       words of codes become operands, one instruction for two numbers, or none
    split_code_query  queries as operands for products with codes
    split_channel_scores  products of codes of keys by channel
    split_code_tile   products of codes; scales and zeros are applied to scores and weights, never to keys or values
    split_code_fold   online softmax that rescales when it must only
    split_code_lanes  which heads and groups a lane has of all this

So no dequantised key or value exists anywhere, neither in memory nor in a register.

FLOPs: 4 * 8 * head_dim a key and KV head on tensor cores, whatever part of the 8 columns the group fills, and for integers 256 for every
two groups of a lane (zeros). Bytes: 2 * kv_heads * (head_dim * bits / 8 + 4 * groups) a key, read once; 8-bit floats have no groups, but 8
bytes of scales a KV head. A head that is cut into n parts adds n * group * (head_dim + 2) * 4 bytes, written and read. Against bfloat16
that is 1.94 times less for int8, 2 for fp8, 3.2 for int4 in groups of 32 and 3.56 in groups of 64 (head_dim 128).

What was measured on an H200 (32/8 heads of 128, tokens of context a second against split_tensor_core in bfloat16, 64 contexts of 4096 and
256 of 1024): int8 1.89 and 1.91, e4m3 1.95 and 1.95, e5m2 1.94 and 1.97, int4 2.9 and 2.9, in groups of 64 3.28 and 3.21. All of them, and
bfloat16 too, take about as long as their bytes at 4.53 TB/s and 10 microseconds more. What mattered at 64 contexts, int8 and int4: integer
products and one head a lane (a third fewer instructions; 1.73 as before, 2.52 to 2.61), the copy engine instead of cp.async, in tiles of 32
keys (1.85, 2.82), requests of whole lines of 128 bytes, and a producer's warp (1.88, 2.93). Before that, codes and scales head by head in
memory (int4 made 2.1 where a head's 64 bytes lay token by token), and blocks looked up a tile ahead. More warps that compute gain nothing:
they are no longer waited for. Groups of 64 for values alone would read 5 % less, but cost int4 2.4 % of perplexity instead of 1.9.
"""

import functools

from numba import cuda, float32, int32, uint32

from minllm.kernels.arguments import is_contiguous
from minllm.kernels.attention.common.arguments import LOG2_E, check_arguments, check_part, check_single_tokens, scratch_arrays, sizes_of
from minllm.kernels.attention.split_quantized.channel_scores import make_channel_scores
from minllm.kernels.attention.split_quantized.code_fold import make_code_folds
from minllm.kernels.attention.split_quantized.code_lanes import lanes_of
from minllm.kernels.attention.split_quantized.code_query import make_query_preparation, query_counts
from minllm.kernels.attention.split_quantized.code_ring import (
    PLACE_SEQUENCE,
    make_aim,
    make_code_ring,
    make_scale_places,
    place_fields_of,
    stage_bytes_of,
)
from minllm.kernels.attention.split_quantized.code_shape import code_ring_bytes_of, shape_of
from minllm.kernels.attention.split_quantized.code_tensor_ring import make_code_tensor_ring, map_of
from minllm.kernels.attention.split_quantized.code_tile import make_mask, make_scores, make_value_products, zero_tiles_of
from minllm.kernels.attention.split_tensor_core.merge_parts import PART_NAMES, make_merges, make_write_zeros, part_shapes, pitch_of
from minllm.kernels.attention.split_tensor_core.plan import (
    CURSOR_FIELDS,
    CUT_FIELDS,
    FIRST,
    HEAD,
    LEFT,
    LINE,
    SEQUENCE,
    TILE,
    TILES,
    make_fair_plan,
    make_fixed_plan,
    make_walk,
    quotient,
    visible_keys,
)
from minllm.kernels.attention.split_tensor_core.shape import grid_of, head_tiles_of
from minllm.kernels.attention.split_tensor_core.tiles import columns_of, make_block_steps
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.ptx import bar_sync, shared_address
from minllm.runtime.kernel import check, kernel, launch


@functools.cache
def make_kernel(kv_format, dtype, block_size, group, splits, shape, residual_window=0):
    """(kernel, threads, dynamic shared bytes) for queries and outputs of 16-bit `dtype`; splits: None for fair shares. residual_window: 0,
    or that whose codes these are (window_keys.py)."""
    head_dim, groups = kv_format.head_dim, kv_format.groups
    head_tiles, heads_here = head_tiles_of(group, head_dim)
    heads, warps, keys, tile, threads, stages = columns_of(heads_here), shape.warps, shape.keys, shape.tile, 32 * shape.warps, shape.stages
    begin, parts_of_head = make_fixed_plan(tile, splits) if splits else make_fair_plan(tile)
    _, advance = make_walk(tile)
    ring_sizes, turns, by_engine = (kv_format, block_size, head_tiles, keys, warps, stages), shape.turns, shape.tensor_copies
    setup, produce, wait_filled, release = make_code_tensor_ring(*ring_sizes)
    fetch, wait_oldest = make_code_ring(*ring_sizes)
    wait, synchronize = (wait_filled, make_synchronize(threads)) if by_engine else (wait_oldest, cuda.syncthreads)
    load_query, prepare_query = make_query_preparation(kv_format, dtype, heads_here)
    make_score_tile = make_channel_scores if kv_format.keys_by_channel else make_scores
    score_tile, mask_tile = make_score_tile(kv_format, shape, heads_here), make_mask(kv_format, keys, heads_here)
    multiply_values = make_value_products(kv_format, shape, heads_here)
    clear, fold, share_states = make_code_folds(kv_format, keys, heads_here)
    (prefetch_block_tables, heads_of, _), write_zeros = make_block_steps(head_dim, group, shape), make_write_zeros(head_dim, threads)
    _, write_whole, write_part, arrive, merge_parts = make_merges(head_dim, heads, warps, synchronize)
    shared_bytes = code_ring_bytes_of(kv_format, shape)
    warp_bytes, place_fields = shared_bytes // warps, place_fields_of(block_size, keys)
    stage_bytes = stage_bytes_of(kv_format, keys, shape.tensor_copies)
    aim, (_, scale_word_of) = make_aim(block_size, keys, warps), make_scale_places(kv_format, keys, stages, shape.tensor_copies)
    floats, lanes = kv_format.is_float, lanes_of(kv_format, heads_here)
    loaded_count, fragment_count = query_counts(kv_format, heads_here)
    all_threads = threads + 32 * by_engine  # with the producer's
    load_early = loaded_count <= 16 and all_threads * shape.blocks <= 256  # where the registers allow two heads' queries at a time
    state_count, score_count, out_count = lanes.heads, lanes.heads * keys // 8, head_dim // 4 * lanes.columns
    sum_count, zero_count = groups * lanes.heads, 4 * zero_tiles_of(lanes) * lanes.columns
    state_shape, out_shape = (turns, warps, heads_here), (turns, warps, heads_here, pitch_of(head_dim))

    @kernel(launch_bounds=(all_threads, shape.blocks), dependent_launch=True)
    def split_quantized_kernel(
        query,  # [tokens, heads, head_dim]
        key_codes,  # [num_blocks, kv_heads, block_size, head_dim * bits / 8]
        value_codes,  # the same
        key_scales,  # as value_scales; by channel [num_blocks, kv_heads, block_size / token_group, head_dim, 2]
        value_scales,  # [num_blocks, kv_heads, block_size, groups, 2]: scale and zero; of 8-bit floats [kv_heads]
        out,  # [tokens, heads, head_dim]
        lse,  # [tokens, heads]: where the log-sum-exp of every row goes, to base 2; or None
        part_max,  # [2 * blocks, heads of a block]
        part_sum,  # the same
        part_out,  # [2 * blocks, heads of a block, head_dim]
        arrivals,  # [blocks], zeros before and after
        query_start,  # [sequences + 1]
        context_lens,  # [sequences]
        block_tables,  # [sequences, max_blocks]
        scale,  # times log2(e): exponentials are to base 2
        sliding_window,
        key_map,  # of key_codes, or None: for tensor copies
        value_map,
    ):
        wait_for_predecessors()
        rings = cuda.shared.array(0, uint32, alignment=1024)
        warp_max = cuda.shared.array(state_shape, float32)
        warp_sum = cuda.shared.array(state_shape, float32)
        warp_out = cuda.shared.array(out_shape, float32)
        arrived = cuda.shared.array(1, int32)
        turn, parts_in_memory = uint32(0), (part_max, part_sum, part_out, arrivals)
        batch = (query_start, context_lens, sliding_window, int32(0), int32(residual_window))
        if by_engine:
            cache = (key_map, value_map, key_scales, value_scales, block_tables)
        else:
            cache = (key_codes, value_codes, key_scales, value_scales, block_tables)
        warp, lane = quotient(cuda.threadIdx.x, 32), int32(uint32(cuda.threadIdx.x) % uint32(32))
        line_heads = int32(key_codes.shape[1] * head_tiles)
        ring_start = uint32(shared_address(rings, 0))
        ring = uint32(ring_start + warp * warp_bytes)

        prefetch_block_tables(block_tables)
        now = cuda.local.array(CURSOR_FIELDS, int32)  # the tile to compute on
        following = cuda.local.array(CURSOR_FIELDS, int32)  # the first tile of the next head
        ahead = cuda.local.array(CURSOR_FIELDS, int32)  # the tile to copy next
        place = cuda.local.array(place_fields, int32)
        cut = cuda.local.array(CUT_FIELDS, int32)
        begin(now, cut, line_heads, batch)
        line = cut[LINE]
        if by_engine:
            if warp < warps:
                setup(ring, lane)
            cuda.syncthreads()
            if warp == warps:  # the producer
                produce(now, line_heads, batch, cache, ring_start, lane)
                return
        else:
            for i in range(CURSOR_FIELDS):
                ahead[i] = now[i]
            place[PLACE_SEQUENCE] = -1
            aim(ahead, place, batch, block_tables, warp)
            for stage in range(stages - 1):
                fetch(ahead, place, line_heads, batch, cache, warp, lane, ring, uint32(ring + stage * stage_bytes))
        ring_end = uint32(ring + stages * stage_bytes)
        stage, free_stage, parity = ring, uint32(ring_end - stage_bytes), uint32(0)

        loaded, fragments = cuda.local.array(loaded_count, uint32), cuda.local.array(fragment_count, uint32)
        units, query_sums = cuda.local.array(state_count, float32), cuda.local.array(sum_count, float32)
        scores, maxima = cuda.local.array(score_count, float32), cuda.local.array(state_count, float32)
        sums, zero_sums = cuda.local.array(state_count, float32), cuda.local.array(zero_count, float32)
        acc, ceiling = cuda.local.array(out_count, float32), cuda.local.array(1, float32)
        lift = cuda.local.array(1, uint32)
        state = (maxima, sums, zero_sums, acc, ceiling, lift)
        write_zeros(out, lse, batch)  # while the first keys are on their way
        if load_early and now[LEFT] > 0:
            first_head, heads_left = heads_of(now[HEAD])
            load_query(loaded, query, query_start[uint32(now[SEQUENCE])], first_head, heads_left, lane)
        while now[LEFT] > 0:  # a head, or a part of one
            row = query_start[uint32(now[SEQUENCE])]
            first_head, heads_left = heads_of(now[HEAD])
            tiles = int32(min(now[TILES] - now[TILE], now[LEFT]))
            start, stop = visible_keys(now[SEQUENCE], batch)
            position = int32((now[FIRST] + now[TILE]) * tile + warp * keys)
            clear(state)
            if not load_early:
                load_query(loaded, query, row, first_head, heads_left, lane)
            prepare_query(fragments, loaded, units, query_sums, lane)
            value_scale = float32(1.0)
            if floats:
                kv_head = uint32(quotient(now[HEAD], head_tiles))
                value_scale = value_scales[kv_head]
                for i in range(state_count):
                    units[i] *= key_scales[kv_head]
            for i in range(CURSOR_FIELDS):
                following[i] = now[i]
            advance(following, tiles, line_heads, batch)
            if load_early and following[LEFT] > 0:  # its queries travel while this head's keys are computed on
                next_head, next_heads = heads_of(following[HEAD])
                load_query(loaded, query, query_start[uint32(following[SEQUENCE])], next_head, next_heads, lane)
            for _ in range(tiles):
                if not by_engine:
                    fetch(ahead, place, line_heads, batch, cache, warp, lane, ring, free_stage)
                at_edge = position < start or int32(position + keys) > stop  # of what is visible
                scale_word = scale_word_of(warp, ring, stage)
                wait(rings, ring_start, ring, stage, scale_word, parity, position, start, stop, at_edge, lane)
                score_tile(scores, fragments, query_sums, rings, scale_word, stage, lane)
                if at_edge:
                    mask_tile(scores, position, start, stop, lane)
                fold(scores, state, units, scale, rings, scale_word, lane)
                multiply_values(state, scores, rings, scale_word, stage, lane)
                if by_engine:
                    release(ring, stage, lane)
                else:
                    cuda.syncwarp()  # all lanes have read the stage, which is filled next
                position = int32(position + tile)
                free_stage = stage
                stage = uint32(stage + stage_bytes)
                if stage == ring_end:
                    stage, parity = ring, uint32(parity ^ 1)

            shared_states = (warp_max[turn], warp_sum[turn], warp_out[turn])
            if turns == 2:  # who writes the next head's state need not wait for those who read this one's
                turn = uint32(1 - turn)
            share_states(state, units, value_scale, shared_states, heads_left)
            synchronize()
            if tiles == now[TILES]:
                write_whole(shared_states, out, lse, row, first_head, heads_left, scale)
            else:
                part = uint32(2 * cuda.blockIdx.x + (0 if line == cut[LINE] else 1))
                write_part(shared_states, parts_in_memory, part, heads_left, scale)
                first_place, parts = parts_of_head(now, cut, line)
                if arrive(parts_in_memory, first_place, arrived) == parts - 1:
                    merge_parts(parts_in_memory, first_place, parts, out, lse, row, first_head, heads_left, scale)
            if turns == 1:
                synchronize()  # nobody reads the shared states any more
            line = int32(line + tiles)
            for i in range(CURSOR_FIELDS):
                now[i] = following[i]

    return split_quantized_kernel, all_threads, shared_bytes


def make_synchronize(threads):
    """A barrier for the first `threads` threads of a block."""

    @cuda.jit(device=True)
    def synchronize():
        bar_sync(1, threads)

    return synchronize


def workspace_shapes(query, key_cache, block_tables, splits=None, sm_count=132, shape=None):
    """The states of heads that several blocks share: name -> (shape, dtype). Pass the same options here and to `attention`."""
    sizes = sizes_of(query, key_cache, block_tables)
    blocks = grid_of(sizes, splits, sm_count, shape or shape_of(sizes, key_cache.format, sm_count))
    _, heads = head_tiles_of(sizes.group, sizes.head_dim)
    return part_shapes(blocks, heads, sizes.head_dim)


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
    residual_window=0,
    lse=None,
):
    """Attention of one new token a sequence over quantised caches, written into `out`; arguments as in kernels/attention/__init__.py.

    key_cache, value_cache: QuantizedCache (kernels/quantization/cache.py); query, out: float16 or bfloat16. splits, sm_count, shape and lse
    as in split_tensor_core.attention. residual_window: rows do not see their recent keys (window_keys.py). Raises KernelArgumentError for
    more than one new token a sequence, for float32, for caches with gaps between tokens, and for blocks of integers that are no multiple
    of 4 tokens.
    """
    inputs = (query, key_cache, value_cache, out, query_start, context_lens, block_tables)
    sizes = check_arguments(*inputs, scale, sliding_window, max_query_len, quantized=True)
    check_single_tokens("split_quantized", sizes, max_query_len, splits)
    check_part(sizes, residual_window, lse, key_cache.format)
    kv_format = key_cache.format
    caches = (key_cache.codes, value_cache.codes, key_cache.scales, value_cache.scales)
    check_caches(caches, kv_format, str(query.dtype), sizes.block_size)
    shape = shape or shape_of(sizes, kv_format, sm_count)
    tiles = shape.keys == kv_format.token_group or not kv_format.keys_by_channel
    check(tiles, f"a warp's tile has {shape.keys} keys; of keys by channel it is a group of {kv_format.token_group}")
    scratch = scratch_arrays(workspace, workspace_shapes(query, key_cache, block_tables, splits, sm_count, shape), query)
    states = tuple(scratch[name] for name in PART_NAMES)
    chosen, threads, shared_bytes = make_kernel(kv_format, str(query.dtype), sizes.block_size, sizes.group, splits, shape, residual_window)
    batch = (query_start, context_lens, block_tables, float(scale * LOG2_E), int(sliding_window))
    maps = [map_of(cache.codes, shape.keys) if shape.tensor_copies else None for cache in (key_cache, value_cache)]
    arguments = (query, *caches, out, lse, *states, *batch, *maps)
    launch(chosen, grid_of(sizes, splits, sm_count, shape), threads, arguments, stream, shared_bytes)


def check_caches(caches, kv_format, dtype, block_size):
    """Raise KernelArgumentError for queries that are not of 16 bits, and for codes and scales with gaps, or not in whole chunks."""
    check(dtype in ("float16", "bfloat16"), f"split_quantized takes queries of float16 or bfloat16, not {dtype}")
    check(all(map(is_contiguous, caches)), "split_quantized takes codes and scales that lie side by side, without gaps between tokens")
    chunks = kv_format.is_float or block_size % 4 == 0
    groups = block_size % kv_format.token_group == 0
    check(groups, f"a cache in {kv_format.name} has blocks of {block_size} tokens; it must have whole groups of {kv_format.token_group}")
    check(chunks, f"a cache in {kv_format.name} has blocks of {block_size} tokens; split_quantized takes multiples of 4")
