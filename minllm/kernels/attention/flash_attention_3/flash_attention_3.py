"""FlashAttention-3, for prompts on Hopper: TMA, wgmma and softmax at the same time (Shah et al., arXiv 2407.08608).

The maths is FlashAttention-2's (flash_attention_2/kernel.py), tile by tile of queries and keys. New is the division of work:

    loads       one warpgroup, the producer, only loads tiles by TMA into rings in shared memory (producer.py); it gives up registers
                to the consumers
    GEMMs       wgmma: a warpgroup multiplies tiles directly from shared memory, and continues while tensor cores work
    softmax     runs while a GEMM is in flight, in one warpgroup while another multiplies (consumer.py, half_rows.py)

A block has two consumers of 64 rows, three if head_dim is at most 64, and one if prompts are that short. It is a persistent kernel: one
block per SM processes many tiles of queries (work.py), and the first GEMMs of a tile overlap with the end of the tile before.

FLOPs: 4 * heads * head_dim per visible (query, key) pair; tiles on the diagonal are computed whole. Bytes: Q and out once; K and V once per
tile of queries and head, visible pages only, nearly all of it from L2: 2 * head_dim * 2 bytes per key. At 128 rows that is 128 FLOP per
byte. Speed: docs/results, "prefill attention" with variant flash_attention_3. The longest prompts run at the GPU's power limit: 700 TFLOP/s
at 1,980 MHz in the first milliseconds, then 620 at 1,650 MHz.

The machine code showed what this required. ptxas moved all exponentials behind the wait for the GEMM that should hide them, until each
tile's sums were stored before the wait (`leave_sums`). It kept addresses and column numbers in registers over the loop, and spilled, until
they were recomputed where they are needed (`opaque`). It computed wgmma's descriptors in every lane, until they were made warp-uniform
(`uniform`). The output is not rescaled while no maximum grows by much (`raise_maxima`).

prompts.py checks a call and chooses tiles; flash_attention_2 serves what this kernel cannot.
"""

import functools

from numba import cuda, float32, int32, uint32

from minllm.kernels.attention.flash_attention_3.consumer import Shared, make_consume, make_turns
from minllm.kernels.attention.flash_attention_3.half_rows import make_parts
from minllm.kernels.attention.flash_attention_3.producer import Batch, make_produce
from minllm.kernels.attention.flash_attention_3.rows import sum_count
from minllm.kernels.attention.flash_attention_3.tiles import make_pipelines
from minllm.kernels.attention.flash_attention_3.work import WORK_SLOTS, WORK_WORDS
from minllm.ptx import setmaxnreg_dec, setmaxnreg_inc
from minllm.runtime.kernel import kernel, launch
from minllm.runtime.tensor_map import tensor_map
from minllm.tiles.shared import ALIGNMENT, first_tile_address


@functools.cache
def make_kernel(dtype, shape, block_size, page_rows):
    """(kernel, threads) for 16-bit `dtype`; block_size: of the cache; page_rows: rows per TMA copy."""
    consumers, threads = shape.consumers, 128 * (shape.consumers + 1)
    row_sum_count, work_count = sum_count(shape), WORK_SLOTS * WORK_WORDS
    # Registers per thread of producer and consumers; together they fit the 65,536 registers of an SM.
    producer_registers, consumer_registers = (32, 160) if consumers == 3 else (40, 232)
    parts = 1 if page_rows == shape.key_tile else 2  # threads that load the pages of a tile
    queries, keys, values, _, make_rings = make_pipelines(shape, parts)
    produce, consume = make_produce(shape, block_size, page_rows, parts), make_consume(shape, make_parts(shape, dtype))
    wait_for_turn, pass_turn = make_turns(consumers)

    @kernel(launch_bounds=(threads, 1))
    def flash_attention_3_kernel(
        query_map,  # tensor map of [tokens, heads, head_dim]; boxes are query_tile rows of one head
        key_map,  # tensor map of [num_blocks, block_size, kv_heads, head_dim]; boxes are page_rows rows of a block and KV head
        value_map,  # the same
        out,  # [tokens, heads, head_dim]
        query_start,  # [sequences + 1]
        context_lens,  # [sequences]
        block_tables,  # [sequences, max_blocks]
        num_blocks,
        kv_heads,
        scale,  # includes log2(e): exponentials are base 2
        window,
    ):
        words = cuda.shared.array(0, uint32, alignment=ALIGNMENT)
        shared = Shared(words, cuda.shared.array(row_sum_count, float32), cuda.shared.array(work_count, int32))
        rings = make_rings(first_tile_address(words))
        thread = cuda.threadIdx.x
        if thread == 0:
            queries.init(rings.queries)
            keys.init(rings.keys)
            values.init(rings.values)
        cuda.syncthreads()
        if thread < 128:
            if consumers > 1:  # with one consumer, every thread already has the most registers it can have
                setmaxnreg_dec(producer_registers)
            part, issues, heads = int32(thread // 64), thread % 32 == 0, int32(out.shape[1])
            batch = Batch(query_start, context_lens, block_tables, num_blocks, heads, kv_heads, window)
            if thread % 64 < 32 and part < parts:  # one call per ring, so that its addresses are constants
                produce(part, issues, True, rings.queries, query_map, rings.keys, key_map, batch, shared.work)
            elif part < parts:
                produce(part, issues, False, rings.queries, query_map, rings.values, value_map, batch, shared.work)
        else:
            if consumers > 1:
                setmaxnreg_inc(consumer_registers)
            own = int32(thread - 128)
            if own // 128 == consumers - 1:  # the first turn is the first consumer's
                pass_turn(consumers - 1)
            consume(rings, shared, out, own, scale, window)
            if own // 128 == 0:  # completes the barrier of the last turn
                wait_for_turn(0)

    return flash_attention_3_kernel, threads


def launch_kernel(made, inputs, scale, window, blocks, stream):
    """Launch the kernel on checked arrays. made: the arguments of make_kernel; scale: includes log2(e)."""
    query, key_cache, value_cache, *batch = inputs
    _, shape, _, page_rows = made
    chosen, threads = make_kernel(*made)
    query_map = tensor_map(query, (shape.query_tile, 1, shape.keys.panel_columns), shape.swizzle)
    page = 1, page_rows, 1, shape.keys.panel_columns
    key_map, value_map = tensor_map(key_cache, page, shape.swizzle), tensor_map(value_cache, page, shape.swizzle)
    num_blocks, _, kv_heads, _ = key_cache.shape
    arguments = (query_map, key_map, value_map, *batch, int(num_blocks), kv_heads, scale, window)
    launch(chosen, blocks, threads, arguments, stream, shape.shared_bytes)
