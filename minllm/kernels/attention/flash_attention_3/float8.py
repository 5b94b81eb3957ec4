"""FlashAttention-3 over a cache of fp8 keys and values, for prompts on Hopper: both GEMMs multiply codes.

The tensor cores of Hopper multiply fp8 twice as fast as 16 bits, and keys and values have half as many bytes. The kernel is
flash_attention_3.py with other parts: consumers round queries and weights to e4m3 (float8_rows.py), and two warps transpose values between
TMA and wgmma (transpose.py). `float8_reference` has the same roundings, in the same order.

FLOPs: 4 * heads * head_dim per visible (query, key) pair, and 1 exponential per pair: at 128 components the GEMMs of a tile take as long as
its exponentials. Bytes: Q and out once; K and V once per tile of queries and head, 2 * head_dim bytes per key, nearly all from L2. Speed:
docs/results, "prefill attention" with variant flash_attention_3_float8; what was tried besides is among the dead ends in docs.

Consumers do not alternate by barriers, as those of 16 bits do, and queries are read from shared memory: wgmma with its left operand in
registers holds up the threads that start it until the tensor cores reach it.

`why_not` says why this kernel cannot serve given arrays; flash_attention_2_quantized serves those.
Sources: Shah et al., arXiv 2407.08608, section 3.3; Micikevicius et al. 2022, "FP8 Formats for Deep Learning".
"""

import functools
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numba import cuda, float32, int32, uint32

from minllm.kernels.arguments import dtype_name
from minllm.kernels.attention import VARIANTS
from minllm.kernels.attention.common.arguments import LOG2_E, check_arguments, query_len_bound, sizes_of
from minllm.kernels.attention.flash_attention_3.consumer import make_consume
from minllm.kernels.attention.flash_attention_3.flash_attention_3 import WHOLE_CONTEXT, grid_of, why_not_gathered
from minllm.kernels.attention.flash_attention_3.float8_rows import EXPONENT, GROWTH, OFFSET, make_parts
from minllm.kernels.attention.flash_attention_3.producer import Batch, make_produce
from minllm.kernels.attention.flash_attention_3.rows import sum_count
from minllm.kernels.attention.flash_attention_3.tiles import TRANSPOSERS, TileShape, make_pipelines
from minllm.kernels.attention.flash_attention_3.transpose import make_transpose
from minllm.kernels.attention.flash_attention_3.work import WORK_SLOTS, WORK_WORDS, make_work
from minllm.ptx import setmaxnreg_dec, setmaxnreg_inc
from minllm.runtime.kernel import kernel, launch
from minllm.runtime.tensor_map import tensor_map
from minllm.tiles.shared import ALIGNMENT, first_tile_address

CODES = ml_dtypes.float8_e4m3fn
LARGEST_HEAD = 128


class Arrays(NamedTuple):
    """Arrays in shared memory, as in consumer.Shared, and the scales of the cache."""

    words: Any
    sums: Any
    work: Any
    key_scales: Any  # float32 [kv_heads]
    value_scales: Any
    heads: int


def quantize_queries(query):
    """(codes, scales) of queries [..., head_dim]: e4m3, and float32 [...], powers of two."""
    largest = np.abs(query.astype(np.float32)).max(axis=-1)
    exponent = np.maximum(np.frexp(largest)[1] - 1 - EXPONENT, 1 - 127)  # the largest number is 2 ** (EXPONENT + exponent) or above
    exponent = np.where(largest > 0, exponent, 1 - 127)
    return np.ldexp(query.astype(np.float32), -exponent[..., None]).astype(CODES), np.ldexp(np.float32(1), exponent)


def attend(query, keys, values, scale, position, key_tile, sliding_window=0):
    """A row of the heads of one KV head over the keys up to its position, in the kernel's steps: float32 [group, head_dim].

    query [group, head_dim], keys and values [keys, head_dim]: codes. scale [group]: with log2(e) and those of queries and keys.
    """
    rows, keys, values = (codes.astype(np.float32) for codes in (query, keys, values))
    first = max(0, position - sliding_window + 1) if sliding_window else 0
    maximum, total, out = np.full(len(rows), -np.inf, np.float32), np.zeros(len(rows), np.float32), np.zeros(rows.shape, np.float32)
    for tile in range(position // key_tile, first // key_tile - 1, -1):
        seen = slice(max(first, tile * key_tile), min(position + 1, (tile + 1) * key_tile))
        scores = rows @ keys[seen].T
        highest = np.maximum(maximum, scores.max(axis=-1))
        raised = np.where(highest * scale <= maximum * scale + np.float32(GROWTH), maximum, highest)
        factor, maximum = np.exp2((maximum - raised) * scale), raised
        weights = np.exp2(scores * scale[:, None] - (maximum * scale - np.float32(OFFSET))[:, None])
        total = total * factor + weights.sum(axis=-1)
        out = out * factor[:, None] + weights.astype(CODES).astype(np.float32) @ values[seen]
    return out / total[:, None]


def float8_reference(query, key_cache, value_cache, query_start, context_lens, block_tables, scale, sliding_window=0, key_tile=128):
    """Attention over QuantizedCaches in fp8_e4m3 with the kernel's roundings; arguments and result as attention_reference's."""
    codes, scales = quantize_queries(query)
    out, group = np.zeros(query.shape, query.dtype), query.shape[1] // key_cache.shape[2]
    caches = [cache.codes.view(CODES) for cache in (key_cache, value_cache)]  # [num_blocks, kv_heads, block_size, head_dim]
    for sequence, context_len in enumerate(np.asarray(context_lens).tolist()):
        start, stop = int(query_start[sequence]), int(query_start[sequence + 1])
        blocks = block_tables[sequence][: -(-context_len // key_cache.shape[1])]
        for kv_head in range(key_cache.shape[2] if context_len else 0):
            heads = slice(kv_head * group, (kv_head + 1) * group)
            keys, values = (cache[blocks, kv_head].reshape(-1, cache.shape[-1]) for cache in caches)
            for token in range(max(start, stop - context_len), stop):
                factors = np.float32(scale * LOG2_E) * key_cache.scales[kv_head] * scales[token, heads]
                position = context_len - stop + token
                attended = attend(codes[token, heads], keys, values, factors, position, key_tile, sliding_window)
                out[token, heads] = attended * value_cache.scales[kv_head]
    return out


def workspace_shapes(query, key_cache, block_tables):
    """FlashAttention-3 needs no scratch memory."""
    return {}


def shape_for(head_dim, max_query_len, block_size=16, max_blocks=2):
    """The TileShape of a block for a cache of blocks of this size, of which a sequence has up to max_blocks.

    Tiles of 160 keys, if they can be gathered from blocks: of what a tile costs besides its keys there is less than with 128.
    """
    if max_query_len <= 64:
        return TileShape(head_dim, 1, 128, codes=True)
    shapes = [TileShape(head_dim, 2, key_tile, codes=True) for key_tile in (160, 128)]
    return next((shape for shape in shapes if shape.page_rows(block_size, max_blocks)), shapes[-1])


def why_not(query, key_cache, block_tables, shape=None):
    """Why this kernel cannot serve these arrays, as a sentence; None if it can."""
    sizes = sizes_of(query, key_cache, block_tables)
    shape = shape or shape_for(sizes.head_dim, sizes.tokens, sizes.block_size, sizes.max_blocks)
    if key_cache.format.name != "fp8_e4m3":
        return f"wgmma multiplies codes of fp8_e4m3; the cache is {key_cache.dtype}"
    if dtype_name(query.dtype) not in ("float16", "bfloat16"):
        return f"queries are float16 or bfloat16, not {query.dtype}"
    if sizes.head_dim > LARGEST_HEAD:
        return f"output and scores of heads of {sizes.head_dim} do not fit into registers; heads up to {LARGEST_HEAD} do"
    return why_not_gathered(query, key_cache.codes, sizes, shape)


@functools.cache
def make_kernel(dtype, shape, block_size, page_rows):
    """(kernel, threads) for queries of 16-bit `dtype`; block_size: of the cache; page_rows: rows per TMA copy."""
    consumers, threads = shape.consumers, 128 * (shape.consumers + 1)
    row_sum_count, work_count = sum_count(shape), WORK_SLOTS * WORK_WORDS
    producer_registers, consumer_registers = 64, 216  # per thread; together they fit the 65,536 registers of an SM
    parts = shape.key_tile // page_rows  # lanes that load a page each, so that they wait together for the numbers of its blocks
    queries, keys, loaded, values, make_rings = make_pipelines(shape, parts)
    produce, consume = make_produce(shape, block_size, page_rows, parts), make_consume(shape, make_parts(shape, dtype))
    transpose = make_transpose(shape, parts)
    count_items = make_work(shape)[0]
    first_transposer = 4 - TRANSPOSERS

    @kernel(launch_bounds=(threads, 1))
    def flash_attention_3_float8_kernel(
        query_map,  # tensor map of [tokens, heads, head_dim]; boxes are query_tile rows of one head
        key_map,  # tensor map of [num_blocks, kv_heads, block_size, head_dim]; boxes are page_rows rows of a block and KV head
        value_map,  # the same
        key_scales,  # [kv_heads]
        value_scales,  # [kv_heads]
        out,  # [tokens, heads, head_dim]
        query_start,  # [sequences + 1]
        context_lens,  # [sequences]
        block_tables,  # [sequences, max_blocks]
        num_blocks,
        scale,  # includes log2(e): exponentials are base 2
        window,
    ):
        words = cuda.shared.array(0, uint32, alignment=ALIGNMENT)
        sums, work = cuda.shared.array(row_sum_count, float32), cuda.shared.array(work_count, int32)
        heads, kv_heads = int32(out.shape[1]), int32(key_scales.shape[0])
        arrays = Arrays(words, sums, work, key_scales, value_scales, heads)
        rings = make_rings(first_tile_address(words))
        thread = cuda.threadIdx.x
        if thread == 0:
            queries.init(rings.queries)
            keys.init(rings.keys)
            loaded.init(rings.loaded)
            values.init(rings.values)
        cuda.syncthreads()
        if thread < 128:
            if consumers > 1:  # with one consumer, every thread already has the most registers it can have
                setmaxnreg_dec(producer_registers)
            total = count_items(query_start, int32(context_lens.shape[0]), heads)
            warp, lane = int32(thread // 32), uint32(uint32(thread) % uint32(32))
            batch = Batch(query_start, context_lens, block_tables, num_blocks, heads, kv_heads, total, window)
            if warp >= first_transposer:
                transpose(words, rings, batch, int32(warp - first_transposer), lane)
            elif warp == 0 and lane < parts:
                produce(int32(lane), True, rings.queries, query_map, rings.keys, key_map, batch, work)
            elif warp == 1 and lane < parts:
                produce(int32(lane), False, rings.queries, query_map, rings.loaded, value_map, batch, work)
        else:
            if consumers > 1:
                setmaxnreg_inc(consumer_registers)
            consume(rings, arrays, out, int32(thread - 128), scale, window)

    return flash_attention_3_float8_kernel, threads


def attention(
    query, key_cache, value_cache, out, query_start, context_lens, block_tables, scale, sliding_window=0, max_query_len=None,
    workspace=None, stream=None, shape=None, blocks=None,
):  # fmt: skip
    """Causal attention of new tokens over QuantizedCaches in fp8_e4m3, written into `out`; arguments as in kernels/attention/__init__.py.

    shape: the TileShape; the default suits head_dim and the prompts' length. blocks: blocks of the grid; by default one per SM.
    Arrays that this kernel cannot serve (`why_not`) are passed to flash_attention_2_quantized.
    """
    inputs = (query, key_cache, value_cache, out, query_start, context_lens, block_tables)
    sizes = check_arguments(*inputs, scale, sliding_window, max_query_len, quantized=True)
    longest = query_len_bound(max_query_len, sizes)
    shape = shape or shape_for(sizes.head_dim, longest, sizes.block_size, sizes.max_blocks)
    if why_not(query, key_cache, block_tables, shape):
        VARIANTS.fallback("flash_attention_3_float8").attention(*inputs, scale, sliding_window, max_query_len, stream=stream)
        return
    page_rows = shape.page_rows(sizes.block_size, sizes.max_blocks)
    block_size = WHOLE_CONTEXT if sizes.max_blocks == 1 else sizes.block_size
    chosen, threads = make_kernel(dtype_name(query.dtype), shape, block_size, page_rows)
    query_map = tensor_map(query, (shape.query_tile, 1, shape.queries.panel_columns), shape.swizzle)
    page = 1, 1, page_rows, shape.box_columns
    key_map, value_map = (tensor_map(cache.codes, page, shape.keys.swizzle) for cache in (key_cache, value_cache))
    arguments = (
        query_map, key_map, value_map, key_cache.scales, value_cache.scales, out, query_start, context_lens, block_tables,
        int(key_cache.shape[0]), float(scale * LOG2_E), int(sliding_window),
    )  # fmt: skip
    launch(chosen, grid_of(query, sizes, shape, longest, blocks), threads, arguments, stream, shape.shared_bytes)
