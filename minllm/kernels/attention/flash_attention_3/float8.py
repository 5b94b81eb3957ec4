"""FlashAttention-3 over a cache of fp8 keys and values, for prompts on Hopper: both GEMMs multiply codes.

The tensor cores of Hopper multiply fp8 twice as fast as 16 bits, and keys and values have half as many bytes. The kernel is
flash_attention_3.py with other parts: consumers round queries and weights to e4m3 (float8_rows.py), and two warps transpose values between
TMA and wgmma (transpose.py). float8_reference.py has the same roundings, in the same order.

FLOPs: 4 * heads * head_dim per visible (query, key) pair, and 1 exponential per pair: at 128 components the GEMMs of a tile take as long as
its exponentials. Bytes: Q and out once; K and V once per tile of queries and head, 2 * head_dim bytes per key, nearly all from L2. Speed:
docs/results, "prefill attention" with variant flash_attention_3_float8; what was tried besides is among the dead ends in docs.

Consumers do not alternate by barriers, as those of 16 bits do, and queries are read from shared memory: wgmma with its left operand in
registers holds up the threads that start it until the tensor cores reach it.

prompts.py checks a call and chooses tiles; flash_attention_2_quantized serves what this kernel cannot.
Sources: Shah et al., arXiv 2407.08608, section 3.3; Micikevicius et al. 2022, "FP8 Formats for Deep Learning".
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, float32, int32, uint32

from minllm.kernels.attention.flash_attention_3.consumer import make_consume
from minllm.kernels.attention.flash_attention_3.float8_rows import make_parts
from minllm.kernels.attention.flash_attention_3.producer import Batch, make_produce
from minllm.kernels.attention.flash_attention_3.rows import sum_count
from minllm.kernels.attention.flash_attention_3.tiles import TRANSPOSERS, make_pipelines
from minllm.kernels.attention.flash_attention_3.transpose import make_transpose
from minllm.kernels.attention.flash_attention_3.work import WORK_SLOTS, WORK_WORDS
from minllm.ptx import setmaxnreg_dec, setmaxnreg_inc
from minllm.runtime.kernel import kernel, launch
from minllm.runtime.tensor_map import tensor_map
from minllm.tiles.shared import ALIGNMENT, first_tile_address


class Arrays(NamedTuple):
    """Arrays in shared memory, as in consumer.Shared, and the scales of the cache."""

    words: Any
    sums: Any
    work: Any
    key_scales: Any  # float32 [kv_heads]
    value_scales: Any
    heads: int


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
            warp, lane = int32(thread // 32), uint32(uint32(thread) % uint32(32))
            batch = Batch(query_start, context_lens, block_tables, num_blocks, heads, kv_heads, window)
            if warp >= first_transposer:
                transpose(words, rings, batch, int32(warp - first_transposer), lane)
            elif warp == 0:
                produce(int32(lane), lane < parts, True, rings.queries, query_map, rings.keys, key_map, batch, work)
            elif warp == 1:
                produce(int32(lane), lane < parts, False, rings.queries, query_map, rings.loaded, value_map, batch, work)
        else:
            if consumers > 1:
                setmaxnreg_inc(consumer_registers)
            consume(rings, arrays, out, int32(thread - 128), scale, window)

    return flash_attention_3_float8_kernel, threads


def launch_kernel(made, inputs, scale, window, blocks, stream):
    """Launch the kernel on checked arrays. made: the arguments of make_kernel; scale: includes log2(e)."""
    query, key_cache, value_cache, *batch = inputs
    _, shape, _, page_rows = made
    chosen, threads = make_kernel(*made)
    query_map = tensor_map(query, (shape.query_tile, 1, shape.queries.panel_columns), shape.swizzle)
    page = 1, 1, page_rows, shape.box_columns
    key_map, value_map = (tensor_map(cache.codes, page, shape.keys.swizzle) for cache in (key_cache, value_cache))
    num_blocks, scales = int(key_cache.shape[0]), (key_cache.scales, value_cache.scales)
    arguments = (query_map, key_map, value_map, *scales, *batch, num_blocks, scale, window)
    launch(chosen, blocks, threads, arguments, stream, shape.shared_bytes)
