"""Flash-Decoding on tensor cores: the fastest kernel of decode steps, level with memory where a context is long.

The idea is split_kv.py's: split the context over many blocks, read each key once for all query heads of its KV head, merge states. All
that counts is to keep enough bytes in flight from memory (Little's law: 4.8 TB/s for a microsecond are 36 KB a multiprocessor), and to
lose no time before the first and after the last of them. What this rung does about it, each part in a file of its own:

    split_ring    every warp has a ring of 16-key tiles in shared memory, filled by cp.async: 100 KB and more a multiprocessor are under
                  way, and no warp ever waits for another. split_tensor_ring: on Hopper the copy engine fills it
    split_tile    both products on tensor cores with keys (or head_dim) on the 16 rows of mma and the heads on its 8 columns
    split_fold    online softmax in the registers of the scores
    split_plan    ragged contexts laid on a line of tiles and cut into equal runs, a block each, planned on the device; the ring runs on
                  over the end of a head, so that memory works while a head is finished
    split_merge_parts   the last block of a head to arrive merges its parts: no second launch, and always in the same order
    split_shape   warps, stages and blocks
    split_tiles   the loop over a head's tiles
    split_cluster for one short sequence, a kernel of its own whose blocks merge through each other's shared memory

FLOPs: 4 * 8 * head_dim a key and KV head on tensor cores, whatever part of the 8 columns the group fills. Bytes: 2 * kv_heads * head_dim
* itemsize a key, read once. A head that is cut into n parts adds n * group * (head_dim + 2) * 4 bytes, written and read.

What was measured on an H200 (32/8 heads of 128, bfloat16, contiguous; in brackets cuDNN in the same run): one sequence of 8192 keys
2.34 TB/s (2.18), 16 of 1024 3.28 (3.40), 16 of 8192 4.29 (4.36), 64 of 4096 4.33 (4.43), 256 of 1024 4.16 (4.37). A copy engine that only
reads reaches 4.5, in whatever order. What mattered: sectors that the L2 cache fetches ahead are looked up twice, so tensor copies that ask
for 128 bytes at a time beat cp.async (tensor_ring.py); 32-bit instead of 64-bit divisions in the plan and block tables fetched to L2
meanwhile took 2.5 of 11 us off a short context, and merging 16 bytes a lane and 16 parts at a time 1.2; the queries of the next head are
loaded ahead; a launch in the predecessor's shadow gives 3 %. What made no difference: K before V, one KV head a sequence, L2 prefetches
before the predecessor's end.
"""

import functools
import math

from numba import cuda, float32, int32, uint32

from minllm.kernels.attention.choice import suits_clusters
from minllm.kernels.attention.common.arguments import LOG2_E, check_arguments, check_part, check_single_tokens, scratch_arrays, sizes_of
from minllm.kernels.attention.split_tensor_core.fold import make_guard, make_seed
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
    visible_keys,
)
from minllm.kernels.attention.split_tensor_core.shape import capability_here, grid_of, head_tiles_of, shape_of
from minllm.kernels.attention.split_tensor_core.tensor_ring import map_of
from minllm.kernels.attention.split_tensor_core.tiles import columns_of, make_block_steps, make_tile_loop, ring_of_a_warp
from minllm.kernels.attention.variants import VARIANTS
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.ptx import cp_async_wait_group_0, shared_address
from minllm.runtime.kernel import check, kernel, launch

MINUS_INFINITY = -math.inf


@functools.cache
def make_kernel(dtype, head_dim, block_size, group, splits, shape, unified=False, seeded=False):
    """(kernel, threads, dynamic shared bytes) for 16-bit `dtype`; splits: None for fair shares; shape: a SplitShape; unified: one maximum
    for all scores (unified_maximum.py); seeded: sequences start from the states of a prefix (cascade.py)."""
    head_tiles, heads_here = head_tiles_of(group, head_dim)
    heads, warps, keys, tile, threads = columns_of(heads_here), shape.warps, shape.keys, shape.tile, 32 * shape.warps
    begin, parts_of_head = make_fixed_plan(tile, splits) if splits else make_fair_plan(tile)
    _, advance = make_walk(tile)
    setup, fill, take_tiles, load_query = make_tile_loop(dtype, head_dim, block_size, group, shape, unified)
    prefetch_block_tables, heads_of, clear = make_block_steps(head_dim, group, shape)
    left_band, seed, write_zeros = make_guard(dtype, warps), make_seed(head_dim, heads), make_write_zeros(head_dim, threads)
    share_states, write_whole, write_part, arrive, merge_parts = make_merges(head_dim, heads, warps)
    shared_bytes, warp_bytes = ring_of_a_warp(head_dim, shape)
    by_engine, steps = shape.tensor_copies, -(-head_dim // 16)
    load_early = steps * heads <= 64  # where the registers allow two heads' queries at a time
    query_count, out_count, state_count = steps * heads // 4, steps * heads // 2, heads // 4
    state_shape, out_shape = (warps, heads_here), (warps, heads_here, pitch_of(head_dim))

    @cuda.jit(device=True)
    def finish_head(now, cut, line, tiles, line_states, out, lse, row, head_range, scale):
        """Write a head's output, or leave this block's part of it in memory; the last block to do so merges all parts."""
        shared_states, parts_in_memory, arrived = line_states
        first_head, heads_left = head_range
        if tiles == now[TILES]:
            write_whole(shared_states, out, lse, row, first_head, heads_left, scale)
        else:
            place = uint32(2 * cuda.blockIdx.x + (0 if line == cut[LINE] else 1))
            write_part(shared_states, parts_in_memory, place, heads_left, scale)
            first_place, parts = parts_of_head(now, cut, line)
            if arrive(parts_in_memory, first_place, arrived) == parts - 1:
                merge_parts(parts_in_memory, first_place, parts, out, lse, row, first_head, heads_left, scale)

    @cuda.jit(device=True)
    def move(cursor, to):
        """Copy a cursor's fields."""
        for i in range(CURSOR_FIELDS):
            to[i] = cursor[i]

    @kernel(launch_bounds=(threads, shape.blocks), dependent_launch=True)
    def split_tensor_core_kernel(
        query,  # [tokens, heads, head_dim]
        key_cache,  # [num_blocks, block_size, kv_heads, head_dim]
        value_cache,  # the same
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
        first_key,
        phi,  # the unified maximum, in units of q . k
        prefix_max,  # [shares, sequences, heads], or None
        prefix_sum,  # the same
        prefix_out,  # [shares, sequences, heads, head_dim], or None
        key_map,  # of key_cache, or None: for tensor copies
        value_map,
    ):
        wait_for_predecessors()
        rings = cuda.shared.array(0, uint32, alignment=1024)
        warp_max = cuda.shared.array(state_shape, float32)
        warp_sum = cuda.shared.array(state_shape, float32)
        warp_out = cuda.shared.array(out_shape, float32)
        arrived = cuda.shared.array(1, int32)
        shared_states, parts_in_memory = (warp_max, warp_sum, warp_out), (part_max, part_sum, part_out, arrivals)
        batch = (query_start, context_lens, sliding_window, first_key, int32(0))
        if by_engine:
            cache = (key_map, value_map, block_tables)
        else:
            cache = (key_cache, value_cache, block_tables)
        warp, lane = int32(cuda.threadIdx.x // 32), int32(cuda.threadIdx.x % 32)
        line_heads = int32(key_cache.shape[2] * head_tiles)
        ring_start = uint32(shared_address(rings, 0))
        ring = uint32(ring_start + warp * warp_bytes)
        places = (rings, ring_start, ring, warp, lane)

        prefetch_block_tables(block_tables)
        setup(ring, lane)
        ahead = cuda.local.array(CURSOR_FIELDS, int32)  # the tile to copy next
        now = cuda.local.array(CURSOR_FIELDS, int32)  # the tile to compute on
        following = cuda.local.array(CURSOR_FIELDS, int32)  # the first tile of the next head
        cut = cuda.local.array(CUT_FIELDS, int32)
        begin(ahead, cut, line_heads, batch)
        move(ahead, now)
        line = cut[LINE]
        ring_state = fill(ahead, line_heads, batch, cache, warp, lane, ring)

        fragments = cuda.local.array(query_count, uint32)
        next_fragments = cuda.local.array(query_count, uint32)
        acc = cuda.local.array(out_count, float32)
        maxima = cuda.local.array(state_count, float32)
        sums = cuda.local.array(state_count, float32)
        if load_early and now[LEFT] > 0:
            first_head, heads_left = heads_of(now[HEAD])
            load_query(next_fragments, query, query_start[uint32(now[SEQUENCE])], first_head, heads_left, lane)
        rescued = False  # whether the unified maximum has failed these tiles, which are taken again with the running one
        while now[LEFT] > 0:  # a head, or a part of one
            row = query_start[uint32(now[SEQUENCE])]
            first_head, heads_left = heads_of(now[HEAD])
            visible = visible_keys(now[SEQUENCE], batch)
            position = int32((now[FIRST] + now[TILE]) * tile + warp * keys)
            tiles = int32(min(now[LEFT], now[TILES] - now[TILE]))
            clear(maxima, sums, acc, phi if unified and not rescued else float32(MINUS_INFINITY))
            if seeded:
                if now[TILE] == 0 and warp == 0:
                    prefix = (prefix_max, prefix_sum, prefix_out)
                    seed(maxima, sums, acc, prefix, now[SEQUENCE], first_head, heads_left, scale, lane)
            if load_early:
                for i in range(query_count):
                    fragments[i] = next_fragments[i]
            else:
                load_query(fragments, query, row, first_head, heads_left, lane)
            move(now, following)
            advance(following, tiles, line_heads, batch)
            if load_early and following[LEFT] > 0:  # its queries travel while this head's keys are computed on
                next_head, next_heads = heads_of(following[HEAD])
                load_query(next_fragments, query, query_start[uint32(following[SEQUENCE])], next_head, next_heads, lane)
            state = (maxima, sums, acc)
            ring_state, highest = take_tiles(
                tiles, position, visible, fragments, state, rescued, ahead, line_heads, batch, cache, places, ring_state, scale
            )
            share_states(maxima, sums, acc, shared_states, heads_left)
            cuda.syncthreads()
            if unified:
                if not rescued and cuda.syncthreads_or(left_band(warp_sum, highest, heads_left)):
                    rescued = True
                    cp_async_wait_group_0()  # what was fetched meanwhile is fetched again
                    cuda.syncwarp()
                    move(now, ahead)
                    ring_state = fill(ahead, line_heads, batch, cache, warp, lane, ring)
                    if load_early:
                        load_query(next_fragments, query, row, first_head, heads_left, lane)
                    continue
                rescued = False
            line_states = (shared_states, parts_in_memory, arrived)
            finish_head(now, cut, line, tiles, line_states, out, lse, row, (first_head, heads_left), scale)
            cuda.syncthreads()  # nobody reads the shared states any more
            line = int32(line + tiles)
            move(following, now)
        write_zeros(out, lse, batch)

    return split_tensor_core_kernel, threads, shared_bytes


def workspace_shapes(query, key_cache, block_tables, splits=None, sm_count=132, shape=None, unified=False):
    """The states of heads that several blocks share: name -> (shape, dtype). Pass the same options here and to `attention`."""
    if str(query.dtype) == "float32":
        return VARIANTS.stand_in("split_tensor_core").workspace_shapes(query, key_cache, block_tables, splits, sm_count)
    sizes = sizes_of(query, key_cache, block_tables)
    blocks = grid_of(sizes, splits, sm_count, shape or shape_of(sizes, sm_count, unified))
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
    phi=None,
    lse=None,
):
    """Attention of one new token a sequence over a paged cache, written into `out`; arguments as in kernels/attention/__init__.py.

    float32 goes to split_kv, one short sequence on Hopper to split_cluster. splits: cut every context into so many shares, for results
    that do not depend on the batch; by default the blocks of a GPU of `sm_count` multiprocessors (a data sheet's "SMs") take fair shares.
    shape: a SplitShape. phi: the unified maximum of unified_maximum.py. lse: float32 [tokens, heads], for the log-sum-exp of every
    row (merge_states.py). Raises KernelArgumentError for more than one new token a sequence: flash_attention_2 takes those.
    """
    inputs = (query, key_cache, value_cache, out, query_start, context_lens, block_tables)
    sizes = check_arguments(*inputs, scale, sliding_window, max_query_len)
    check_single_tokens("split_tensor_core" if phi is None else "split_unified_maximum", sizes, max_query_len, splits)
    check_part(sizes, 0, lse)
    if str(query.dtype) == "float32":
        check(lse is None, "the log-sum-exp needs float16 or bfloat16 queries, not float32")
        options = (scale, sliding_window, max_query_len, workspace, stream, splits, sm_count)
        VARIANTS.stand_in("split_tensor_core").attention(*inputs, *options)
        return
    if all(option is None for option in (splits, shape, phi, lse)) and suits_clusters(sizes, capability_here()):
        clusters = VARIANTS["split_cluster"]
        if cluster := clusters.choose_cluster(sizes, sm_count):
            clusters.launch_clusters(inputs, sizes, scale, sliding_window, stream, *cluster)
            return
    phi = None if phi is None else phi / scale  # in units of q . k
    launch_kernel(inputs, sizes, scale, sliding_window, workspace, stream, splits, sm_count, shape, phi, lse=lse)


def launch_kernel(
    inputs, sizes, scale, sliding_window, workspace, stream, splits, sm_count, shape, phi=None, prefix=None, first_key=0, lse=None
):
    """Launch the kernel on checked inputs; with a unified maximum if phi is given, in units of q . k; from the states of a prefix on, and
    only on keys from first_key on, if those are given."""
    query, key_cache, value_cache, out, query_start, context_lens, block_tables = inputs
    dtype, unified = str(query.dtype), phi is not None
    shape = shape or shape_of(sizes, sm_count, unified)
    check(not (unified and shape.tensor_copies), "the unified maximum takes no tensor copies: it may have to fetch a run again")
    scratch = scratch_arrays(workspace, workspace_shapes(query, key_cache, block_tables, splits, sm_count, shape), query)
    states = tuple(scratch[name] for name in PART_NAMES)
    chosen, threads, shared_bytes = make_kernel(
        dtype, sizes.head_dim, sizes.block_size, sizes.group, splits, shape, unified, prefix is not None
    )
    numbers = (float(scale * LOG2_E), int(sliding_window), int(first_key), float(phi or 0.0))
    maps = (map_of(key_cache), map_of(value_cache)) if shape.tensor_copies else (None, None)
    optional = (*(prefix or (None, None, None)), *maps)
    arguments = (query, key_cache, value_cache, out, lse, *states, query_start, context_lens, block_tables, *numbers, *optional)
    launch(chosen, grid_of(sizes, splits, sm_count, shape), threads, arguments, stream, shared_bytes)
