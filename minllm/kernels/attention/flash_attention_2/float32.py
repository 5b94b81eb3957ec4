"""FlashAttention-2 for float32, on the plain cores: the structure of flash_attention_2, with register tiles in place of tensor cores.

Tensor cores would round float32 to TF32 (10 bits of mantissa). This path keeps all 24 bits, for models in float32 and for parity
tests; its ceiling is the float32 FMA rate. Maths, FLOPs and the walk over visible tiles are those of flash_attention_2.py (arXiv
2307.08691, section 3.1).

How threads map to data: grid (query tiles, heads, sequences); float32_tiles.py says which rows and keys of a tile a thread owns,
float32_products.py what it does with them.
"""

import functools

from numba import cuda, float32

from minllm.kernels.attention.common.arguments import LOG2_E, check_arguments, query_len_bound
from minllm.kernels.attention.common.paged_cache import kv_head_of
from minllm.kernels.attention.flash_attention_2.float32_products import make_products, make_softmax
from minllm.kernels.attention.flash_attention_2.float32_tiles import Float32Tiles, make_tile_loads, tiles_for
from minllm.runtime.kernel import check, kernel, launch


def workspace_shapes(query, key_cache, block_tables):
    """FlashAttention-2 needs no scratch memory."""
    return {}


@functools.cache
def make_kernel(head_dim, block_size, row_threads, column_threads, rows_each, keys_each):
    """(kernel, threads, query rows of a tile, shared bytes)."""
    tiles = Float32Tiles(head_dim, row_threads, column_threads, rows_each, keys_each)
    load_query_tile, load_cache_tile = make_tile_loads(tiles, block_size)
    multiply_query_key, multiply_weights_values = make_products(tiles)
    clear, fold_softmax, store_rows = make_softmax(tiles)
    query_tile, key_tile, keys_at, values_at = tiles.query_tile, tiles.key_tile, tiles.keys_at, tiles.values_at
    score_count, out_count = rows_each * keys_each, rows_each * tiles.dims_each

    @kernel
    def flash_attention_2_float32_kernel(
        query,  # [tokens, heads, head_dim]
        key_cache,  # [num_blocks, block_size, kv_heads, head_dim]
        value_cache,  # the same
        out,  # [tokens, heads, head_dim]
        query_start,  # [sequences + 1]
        context_lens,  # [sequences]
        block_tables,  # [sequences, max_blocks]
        scale,  # times log2(e): exponentials are to base 2
        sliding_window,
    ):
        shared = cuda.shared.array(0, float32, alignment=128)
        sequence, head = cuda.blockIdx.z, cuda.blockIdx.y
        kv_head = kv_head_of(head, query.shape[1], key_cache.shape[2])
        block_table = block_tables[sequence]
        first_row = (cuda.gridDim.x - 1 - cuda.blockIdx.x) * query_tile
        token = query_start[sequence] + first_row
        rows = query_start[sequence + 1] - token  # rows of the sequence from the tile's first on
        if rows <= 0:
            return
        row_thread, column = cuda.threadIdx.x // column_threads, cuda.threadIdx.x % column_threads
        context_len = context_lens[sequence]
        first_position = context_len - rows  # of the tile's first row
        visible_start = max(0, first_position - sliding_window + 1) if sliding_window > 0 else 0
        visible_stop = max(0, min(context_len, first_position + query_tile))
        first_key = visible_start - visible_start % key_tile

        scores = cuda.local.array(score_count, float32)
        acc = cuda.local.array(out_count, float32)
        maxima = cuda.local.array(rows_each, float32)
        sums = cuda.local.array(rows_each, float32)
        clear(maxima, sums, acc)
        load_query_tile(query, token, head, rows, shared)
        while first_key < visible_stop:
            load_cache_tile(key_cache, block_table, kv_head, first_key, visible_start, visible_stop, shared, keys_at)
            load_cache_tile(value_cache, block_table, kv_head, first_key, visible_start, visible_stop, shared, values_at)
            cuda.syncthreads()
            multiply_query_key(scores, shared, row_thread, column)
            fold_softmax(scores, maxima, sums, acc, shared, row_thread, column, first_key, first_position, sliding_window, scale)
            cuda.syncwarp()  # a row's weights are written and read by threads of one warp
            multiply_weights_values(acc, shared, row_thread, column)
            cuda.syncthreads()  # before the next tiles overwrite these
            first_key += key_tile

        store_rows(out, token, head, rows, sums, acc, row_thread, column)

    return flash_attention_2_float32_kernel, tiles.threads, query_tile, tiles.shared_bytes


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
    tiles=None,
):
    """Causal attention of new float32 tokens over a paged cache, written into `out`; arguments as in kernels/attention/__init__.py.

    tiles: (row threads, column threads, rows a thread, keys a thread); the default suits the head_dim.
    """
    inputs = (query, key_cache, value_cache, out, query_start, context_lens, block_tables)
    sizes = check_arguments(*inputs, scale, sliding_window, max_query_len)
    check(str(query.dtype) == "float32", f"flash_attention_2_float32 takes float32, not {query.dtype}; flash_attention_2 takes all dtypes")
    longest = query_len_bound(max_query_len, sizes)
    tiles = tiles or tiles_for(sizes.head_dim)
    chosen, threads, query_tile, shared_bytes = make_kernel(sizes.head_dim, sizes.block_size, *tiles)
    grid = (-(-longest // query_tile), sizes.heads, sizes.sequences)
    launch(chosen, grid, threads, (*inputs, float(scale * LOG2_E), int(sliding_window)), stream, shared_bytes)
