"""Flash-Decoding over a quantised KV cache: the codes themselves are multiplied on tensor cores.

Plans, the loop over tiles and merge_parts are those of split_tensor_core.py. Tiles and the operations on them differ, one idea per file:

    walk        a block's loop over its run of tiles
    layout      codes and scales are copied unchanged, by cp_async_ring.py, or by tma_ring.py, which needs a producer warp
    codes       which heads, groups and channels a lane holds
    operands    words of codes become operands, with one instruction per two numbers or none
    products    matmuls of codes; scales and zeros are applied to scores and weights: no K or V is dequantised, not even in a register
    integers, floats, channels   queries and scores, one file per kind of keys
    softmax     online softmax that rescales only when it must

FLOPs: those of split_tensor_core.py, and for integers 256 for every two groups of a lane (zeros). Bytes: 2 * kv_heads * (head_dim * bits
/ 8 + 4 * groups) per key, read once; 8-bit floats have no groups, but 8 bytes of scales per KV head. Compared with bfloat16 that is 1.94
times less for int8, 2 for fp8, 3.2 for int4 in groups of 32 and 3.56 in groups of 64 (head_dim 128).

Measured: docs/results.md, rows split_quantized, beside split_tensor_core in bfloat16; docs/split-decode.md says what mattered.
"""

import functools

from numba import cuda, float32, int32, uint32

from minllm.kernels.arguments import dtype_name, is_contiguous
from minllm.kernels.attention.common.arguments import LOG2_E, check_arguments, check_lse, check_single_tokens, sizes_of
from minllm.kernels.attention.common.window_keys import check_window, code_keys
from minllm.kernels.attention.common.workspace import scratch_arrays
from minllm.kernels.attention.split_quantized import channels, cp_async_ring, floats, integers, tma_ring
from minllm.kernels.attention.split_quantized.codes import QueryOperands, lanes_of
from minllm.kernels.attention.split_quantized.layout import CodeCache, CodeLayout, can_fetch, map_of, run_of
from minllm.kernels.attention.split_quantized.products import make_mask, make_value_products
from minllm.kernels.attention.split_quantized.softmax import CodeState, make_code_softmax
from minllm.kernels.attention.split_quantized.walk import make_walk
from minllm.kernels.attention.split_tensor_core import shape as shapes
from minllm.kernels.attention.split_tensor_core.fair_plan import make_fair_plan
from minllm.kernels.attention.split_tensor_core.fixed_plan import make_fixed_plan
from minllm.kernels.attention.split_tensor_core.merge_parts import PART_NAMES, Parts, part_shapes
from minllm.kernels.attention.split_tensor_core.plan import Batch, visible_keys
from minllm.kernels.attention.split_tensor_core.tile_loop import Products
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.runtime.device import CONSUMER_BLACKWELL, HOPPER, block_shared_bytes_here, capability_here, sms_here
from minllm.runtime.kernel import check, kernel, launch


@functools.cache
def make_visible_codes(residual_window):
    """visible_keys of plan.py, restricted to the keys read as codes if there is a residual window (window_keys.py)."""

    @cuda.jit(device=True)
    def visible_codes(sequence, batch):
        start, stop = visible_keys(sequence, batch)
        stop = code_keys(int32(stop - 1), residual_window)
        if start >= stop:
            start, stop = int32(0), int32(0)
        return start, stop

    return visible_codes if residual_window else visible_keys


def arithmetic_of(kv_format):
    """The module that multiplies the keys of a format. Each has query_counts(kv_format, heads_here), make_scores(layout, heads_here) and
    make_query(kv_format, dtype, heads_here, head_tiles)."""
    return channels if kv_format.keys_by_channel else floats if kv_format.is_float else integers


@functools.cache
def make_products(layout, dtype, heads_here, head_tiles):
    """The Products for blocks of `heads_here` query heads of 16-bit `dtype`."""
    kv_format, arithmetic = layout.kv_format, arithmetic_of(layout.kv_format)
    load_query, prepare = arithmetic.make_query(kv_format, dtype, heads_here, head_tiles)
    score, mask, values = arithmetic.make_scores(layout, heads_here), make_mask(layout, heads_here), make_value_products(layout, heads_here)
    return Products(load_query, prepare, score, mask, values, lanes_of(kv_format, heads_here).heads * layout.keys // 8)


@functools.cache
def make_code_walk(kv_format, dtype, block_size, group, splits, shape, residual_window, load_early):
    """The walk for blocks of a SplitShape; arguments as in make_kernel."""
    head_dim, (head_tiles, heads_here) = kv_format.head_dim, shapes.head_tiles_of(group, kv_format.head_dim)
    layout, by_tma, warps = layout_of(kv_format, shape), shape.tensor_copies, shape.warps
    tile, visible = shape.tile, make_visible_codes(residual_window)
    plan = make_fixed_plan(tile, splits, visible) if splits else make_fair_plan(tile, visible)
    source, aim, produce = (tma_ring if by_tma else cp_async_ring).make_source(layout, block_size, head_tiles, warps, plan)
    products, softmax = make_products(layout, dtype, heads_here, head_tiles), make_code_softmax(layout, heads_here)
    return make_walk(group, head_dim, shape, plan, source, aim, produce, products, softmax, load_early)


@functools.cache
def make_kernel(kv_format, dtype, block_size, group, splits, shape, residual_window=0):
    """(kernel, threads, dynamic shared bytes) for queries and outputs of 16-bit `dtype`. splits: None for fair shares; shape: a SplitShape;
    residual_window: 0, or a residual window (window_keys.py), of which this kernel reads the codes."""
    head_tiles, heads_here = shapes.head_tiles_of(group, kv_format.head_dim)
    by_tma, lanes = shape.tensor_copies, lanes_of(kv_format, heads_here)
    threads = 32 * (shape.warps + by_tma)  # includes the producer warp
    loaded_count, fragment_count = arithmetic_of(kv_format).query_counts(kv_format, heads_here)
    most_threads = 384 if kv_format.is_float else 256  # per SM, so that the registers have room for the queries of two heads
    load_early = loaded_count <= 16 and threads * shape.blocks <= most_threads
    head_count, group_count, out_count = lanes.heads, kv_format.groups * lanes.heads, kv_format.head_dim // 4 * lanes.columns
    zero_count, block_count = 4 * lanes.zero_tiles * lanes.columns, shape.keys // run_of(block_size, shape.keys)
    walk = make_code_walk(kv_format, dtype, block_size, group, splits, shape, residual_window, load_early)

    @kernel(launch_bounds=(threads, shape.blocks), dependent_launch=True)
    def split_quantized_kernel(
        query,  # [tokens, heads, head_dim]
        key_codes,  # [num_blocks, kv_heads, block_size, head_dim * bits / 8]
        value_codes,  # the same
        key_scales,  # like value_scales; if keys are quantised by channel [num_blocks, kv_heads, block_size / token_group, head_dim, 2]
        value_scales,  # [num_blocks, kv_heads, block_size, groups, 2]: scale and zero; for 8-bit floats [kv_heads]
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
        key_map,  # key_codes' tensor map, or None without TMA
        value_map,
    ):
        wait_for_predecessors()
        blocks = cuda.local.array(block_count, int32)
        if by_tma:
            cache = CodeCache(key_map, value_map, key_scales, value_scales, blocks)
        else:
            cache = CodeCache(key_codes, value_codes, key_scales, value_scales, blocks)
        batch = Batch(query_start, context_lens, block_tables, int32(key_codes.shape[1] * head_tiles), sliding_window)
        parts = Parts(part_max, part_sum, part_out, arrivals)
        fragments, loaded = cuda.local.array(fragment_count, uint32), cuda.local.array(loaded_count, uint32)
        operands = QueryOperands(fragments, loaded, cuda.local.array(head_count, float32), cuda.local.array(group_count, float32))
        maxima, sums = cuda.local.array(head_count, float32), cuda.local.array(head_count, float32)
        zero_sums, acc = cuda.local.array(zero_count, float32), cuda.local.array(out_count, float32)
        state = CodeState(maxima, sums, zero_sums, acc, cuda.local.array(1, float32), cuda.local.array(1, uint32))
        walk(query, cache, batch, out, lse, parts, operands, state, scale)

    return split_quantized_kernel, threads, shape.warps * layout_of(kv_format, shape).ring_bytes


def layout_of(kv_format, shape):
    """The CodeLayout for blocks of a SplitShape."""
    return CodeLayout(kv_format, shape.keys, shape.stages, shape.tensor_copies)


@functools.cache
def shape_for(kv_format, group, line_heads, shared_bytes=None, sm_count=None, tensor_copies=False):
    """The SplitShape for `line_heads` heads over all sequences and blocks of at most `shared_bytes`; None: the current GPU's values.

    Eight warps per SM, as many as the registers allow: in one block if few heads are split among all SMs, else in several, so that one
    block finishes a head while the others continue. The fewer bytes a key has, the sooner a head is finished. TMA loads 32 keys at a time:
    that takes few requests, and rings without padding have room for them.
    """
    shared_bytes, sm_count = shared_bytes or block_shared_bytes_here(), sm_count or sms_here()
    _, heads = shapes.head_tiles_of(group, kv_format.head_dim)
    narrow = kv_format.code_bytes in (32, 64)
    keys = 32 if (narrow or tensor_copies) and kv_format.groups * heads <= 32 else 16  # registers hold no more scores
    keys = kv_format.token_group if kv_format.keys_by_channel else keys  # for keys by channel, a tile is one group
    few = [(warps, keys, stages, 1, 1) for warps, stages in ((8, 4), (8, 3), (4, 4), (4, 3), (4, 2), (2, 2), (1, 2))]
    if keys == 16:
        many = [(4, 16, 4, 2, 2), (4, 16, 3, 2, 2)]
    elif narrow:
        many = [(2, 32, 3, 4, 2), (4, 32, 3, 2, 2)]
    else:
        many = [(2, 32, 3, 4, 1), (4, 32, 3, 2, 1)]
    sizes = [*many, *few] if line_heads >= 2 * sm_count else few
    candidates = [shapes.SplitShape(*numbers, tensor_copies=tensor_copies, turns=turns) for *numbers, turns in sizes]
    return shapes.first_that_fits(candidates, kv_format.head_dim, heads, lambda shape: layout_of(kv_format, shape).ring_bytes, shared_bytes)


def shape_of(sizes, kv_format, sm_count=None):
    """The SplitShape of a call. TMA loads codes if GPU and cache allow it; from 12.0 on, the walk with TMA would need a stack frame."""
    by_tma = HOPPER <= capability_here() < CONSUMER_BLACKWELL and can_fetch(kv_format, sizes.block_size)
    machine = (block_shared_bytes_here(), sm_count or sms_here())  # passed explicitly, because shape_for caches results by its arguments
    return shape_for(kv_format, sizes.group, shapes.line_heads_of(sizes), *machine, tensor_copies=by_tma)


def workspace_shapes(query, key_cache, block_tables, splits=None, sm_count=None, shape=None):
    """The states of heads that several blocks share: name -> (shape, dtype). Pass the same options here and to `attention`."""
    sizes = sizes_of(query, key_cache, block_tables)
    blocks = shapes.grid_of(sizes, splits, sm_count, shape or shape_of(sizes, key_cache.format, sm_count))
    _, heads = shapes.head_tiles_of(sizes.group, sizes.head_dim)
    return part_shapes(blocks, heads, sizes.head_dim)


def attention(
    query, key_cache, value_cache, out, query_start, context_lens, block_tables, scale, sliding_window=0, max_query_len=None,
    workspace=None, stream=None, splits=None, sm_count=None, shape=None, residual_window=0, lse=None,
):  # fmt: skip
    """Attention of one new token per sequence over quantised caches, written into `out`; arguments as in kernels/attention/__init__.py.

    key_cache, value_cache: QuantizedCache (kernels/quantization/cache.py); query, out: float16 or bfloat16. splits, sm_count, shape and lse
    as in split_tensor_core.attention. residual_window: if not 0, rows do not see their recent keys (window_keys.py). Raises
    KernelArgumentError for more than one new token per sequence, for float32, for caches with gaps between tokens, and for integer formats
    with a block size that is not a multiple of 4 tokens.
    """
    inputs = (query, key_cache, value_cache, out, query_start, context_lens, block_tables)
    sizes = check_arguments(*inputs, scale, sliding_window, max_query_len, quantized=True)
    check_single_tokens("split_quantized", sizes, max_query_len, splits)
    check_window(residual_window, key_cache.format)
    check_lse(sizes, lse)
    kv_format, dtype = key_cache.format, dtype_name(query.dtype)
    caches = (key_cache.codes, value_cache.codes, key_cache.scales, value_cache.scales)
    check_caches(caches, kv_format, dtype, sizes.block_size)
    shape = shape or shape_of(sizes, kv_format, sm_count)
    tiles = shape.keys == kv_format.token_group or not kv_format.keys_by_channel
    check(tiles, f"a warp's tile has {shape.keys} keys; of keys by channel it is a group of {kv_format.token_group}")
    scratch = scratch_arrays(workspace, workspace_shapes(query, key_cache, block_tables, splits, sm_count, shape), query)
    states = tuple(scratch[name] for name in PART_NAMES)
    chosen, threads, shared_bytes = make_kernel(kv_format, dtype, sizes.block_size, sizes.group, splits, shape, residual_window)
    batch = (query_start, context_lens, block_tables, float(scale * LOG2_E), int(sliding_window))
    maps = [map_of(cache.codes, shape.keys) if shape.tensor_copies else None for cache in (key_cache, value_cache)]
    arguments = (query, *caches, out, lse, *states, *batch, *maps)
    launch(chosen, shapes.grid_of(sizes, splits, sm_count, shape), threads, arguments, stream, shared_bytes)


def check_caches(caches, kv_format, dtype, block_size):
    """Raise KernelArgumentError unless queries have 16 bits and codes and scales are contiguous, in whole chunks and groups."""
    check(dtype in ("float16", "bfloat16"), f"split_quantized takes queries of float16 or bfloat16, not {dtype}")
    check(all(map(is_contiguous, caches)), "split_quantized takes codes and scales that lie side by side, without gaps between tokens")
    chunks = kv_format.is_float or block_size % 4 == 0
    groups = block_size % kv_format.token_group == 0
    check(groups, f"a cache in {kv_format.name} has blocks of {block_size} tokens; it must have whole groups of {kv_format.token_group}")
    check(chunks, f"a cache in {kv_format.name} has blocks of {block_size} tokens; split_quantized takes multiples of 4")
