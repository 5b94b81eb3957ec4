"""FlashAttention-2 over a paged KV cache, on tensor cores: the kernel for prompts, whole or in chunks.

The maths is online softmax (Milakov and Gimelshein, arXiv 1805.02867). A row keeps its maximum m, its sum l and its output o, and
folds in one tile of keys at a time:

    s_j = scale * (q . k_j)     m' = max(m, max_j s_j)     p_j = exp(s_j - m')     l' = l exp(m - m') + sum_j p_j
    o' = o exp(m - m') + sum_j p_j v_j          and at the end  out = o / l

FlashAttention-2 (Dao, arXiv 2307.08691, section 3) puts the loop over queries outside: a block owns a tile of queries and walks over
the keys, so m, l and o stay in registers, nothing is rescaled in memory, and tiles of queries run in parallel. Keys that no row of
the tile may see, those after its last row and those before its first row's window, are never loaded: half of the work of a causal
prompt.

FLOPs: 4 * heads * head_dim a visible (query, key) pair. Bytes: Q and out once, K and V once a tile of queries and head (most of it
from L2): 2 * head_dim * itemsize a key, for 4 * QUERY_TILE * head_dim FLOPs: an intensity of 2 * QUERY_TILE / itemsize = 64 FLOP a
byte from L2 for 64 rows of bf16, and far more from memory.

How threads map to data: grid (query tiles, heads, sequences), the longest tiles first. A warp owns 16 or 32 rows (warp_tiles.py); warps
split the queries and exchange nothing (section 3.3 of the paper). Q, K and V tiles come by cp.async; V travels while the scores are
computed, and the next K while softmax and the second product run. Shared rows are padded by 16 bytes, so that the eight rows of an
ldmatrix tile fall into different banks. A head_dim that is no multiple of 16 is padded with zeros in shared memory.
"""

import functools

from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.attention.common.arguments import LOG2_E, check_arguments, check_part, query_len_bound
from minllm.kernels.attention.common.online_softmax import log_sum_exp, reciprocal_or_zero
from minllm.kernels.attention.common.paged_cache import kv_head_of
from minllm.kernels.attention.common.shared_tiles import make_tile_copies
from minllm.kernels.attention.common.window_keys import ALL, RECENT, make_row_keys
from minllm.kernels.attention.flash_attention_2 import float32 as flash_attention_2_float32
from minllm.kernels.attention.flash_attention_2.warp_tiles import MINUS_INFINITY, WarpTiles, make_warp_products, make_warp_softmax
from minllm.ptx import cp_async_commit_group, cp_async_wait_group_0
from minllm.runtime.kernel import check, kernel, launch
from minllm.tiles.rows import make_rows


def workspace_shapes(query, key_cache, block_tables):
    """FlashAttention-2 needs no scratch memory."""
    return {}


def tiles_for(head_dim, max_query_len, heads, sequences, sm_count=132):
    """(query rows, keys, warps) of a block's tiles.

    Fewer keys for large heads, whose accumulators fill the registers. 128 rows, 32 a warp, read K and V half as often as 64; 64 rows make
    more blocks, for batches that would not give every multiprocessor two of the large ones.
    """
    if head_dim > 128:
        return 64, 32, 4
    large_blocks = -(-max_query_len // 128) * heads * sequences
    if large_blocks < 2 * sm_count:
        return 64, 64, 4
    return (128, 64, 4) if head_dim <= 64 else (128, 32, 4)


@functools.cache
def make_kernel(dtype, head_dim, block_size, query_tile, key_tile, warps, residual_window=0):
    """(kernel, threads, shared bytes) for 16-bit `dtype`; query_tile is a multiple of 16 * warps, key_tile of 16.

    residual_window: 0, or that of window_keys.py, of whose keys these are the recent ones.
    """
    tiles = WarpTiles(head_dim, query_tile, key_tile, warps)
    threads, row_tiles, keys_at, values_at = tiles.threads, tiles.row_tiles, tiles.keys_at, tiles.values_at
    query_in_registers, query_words = tiles.query_in_registers, tiles.query_words
    score_count, out_count = tiles.score_count, tiles.out_count
    steps, half_rows = tiles.padded_dim // 16, 2 * row_tiles
    copy_query_tile, copy_cache_tile = make_tile_copies(head_dim, block_size, query_tile, key_tile, threads)
    score_rows = make_rows(key_tile, dtype, row_tiles)
    out_rows = make_rows(head_dim, dtype, row_tiles, tiles.padded_dim)
    load_query_fragments, multiply_query_key, multiply_weights_values = make_warp_products(dtype, tiles, score_rows)
    part = RECENT if residual_window else ALL
    mask, fold_softmax = make_warp_softmax(tiles, score_rows, out_rows, part, residual_window)
    first_key_of, last_key_of = make_row_keys(part, residual_window)

    @cuda.jit(device=True)
    def store_rows(acc, maxima, sums, out, lse, token, head, rows, warp_row, lane, scale):
        """out = acc / sums, and the log-sum-exp where lse is not None."""
        for half in range(half_rows):
            total = out_rows.sum(sums[half])
            inverse = reciprocal_or_zero(total)
            row = warp_row + out_rows.position(half, lane)
            if lse is not None:
                if row < rows and lane % 4 == 0:
                    lse[token + row, head] = log_sum_exp(maxima[half], total, scale)
            index = (int64(token + row) * out.shape[1] + head) * head_dim
            out_rows.store(acc, half, inverse, out, index, row < rows, lane)

    @kernel(launch_bounds=(threads, tiles.blocks_at_once))
    def flash_attention_2_kernel(
        query,  # [tokens, heads, head_dim]
        key_cache,  # [num_blocks, block_size, kv_heads, head_dim]
        value_cache,  # the same
        out,  # [tokens, heads, head_dim]
        lse,  # [tokens, heads]: where the log-sum-exp of every row goes, to base 2; or None
        query_start,  # [sequences + 1]
        context_lens,  # [sequences]
        block_tables,  # [sequences, max_blocks]
        scale,  # times log2(e): exponentials are to base 2
        sliding_window,
    ):
        shared = cuda.shared.array(0, uint32, alignment=128)
        sequence, head = cuda.blockIdx.z, cuda.blockIdx.y
        kv_head = kv_head_of(head, query.shape[1], key_cache.shape[2])
        first_row = (cuda.gridDim.x - 1 - cuda.blockIdx.x) * query_tile
        token = query_start[sequence] + first_row
        rows = query_start[sequence + 1] - token  # rows of the sequence from the tile's first on
        if rows <= 0:
            return
        lane, warp_row = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32 * 16 * row_tiles
        context_len = context_lens[sequence]
        first_position = int32(context_len - rows)  # of the tile's first row
        last_position = int32(min(context_len, first_position + query_tile) - 1)
        visible_start = int32(max(0, first_key_of(first_position, sliding_window)))
        visible_stop = int32(max(0, last_key_of(last_position) + 1))
        block_table = block_tables[sequence]
        first_key = int32(visible_start - visible_start % key_tile)

        query_fragments = cuda.local.array(query_words, uint32)
        scores = cuda.local.array(score_count, float32)
        acc = cuda.local.array(out_count, float32)
        maxima = cuda.local.array(half_rows, float32)
        sums = cuda.local.array(half_rows, float32)
        for i in range(out_count):
            acc[i] = float32(0.0)
        for i in range(half_rows):
            maxima[i] = float32(MINUS_INFINITY)
            sums[i] = float32(0.0)

        copy_query_tile(query, token, head, rows, shared)
        if first_key < visible_stop:
            copy_cache_tile(key_cache, block_table, kv_head, first_key, visible_start, visible_stop, shared, keys_at)
        cp_async_commit_group()
        if query_in_registers:
            cp_async_wait_group_0()
            cuda.syncthreads()
            for row_tile in range(row_tiles):
                for step in range(steps):
                    load_query_fragments(query_fragments, 4 * (row_tile * steps + step), shared, warp_row, row_tile, step, lane)
        while first_key < visible_stop:
            cp_async_wait_group_0()
            cuda.syncthreads()  # this tile of K has arrived, and nobody reads the last tile of V any more
            copy_cache_tile(value_cache, block_table, kv_head, first_key, visible_start, visible_stop, shared, values_at)
            cp_async_commit_group()
            multiply_query_key(scores, query_fragments, shared, warp_row, lane)
            cp_async_wait_group_0()
            cuda.syncthreads()  # this tile of V has arrived, and nobody reads this tile of K any more
            next_key = int32(first_key + key_tile)
            if next_key < visible_stop:
                copy_cache_tile(key_cache, block_table, kv_head, next_key, visible_start, visible_stop, shared, keys_at)
            cp_async_commit_group()
            row_position = first_position + warp_row + lane // 4
            at_the_end = next_key > last_key_of(first_position) + 1
            at_the_start = first_key < first_key_of(int32(first_position + query_tile - 1), sliding_window)
            if at_the_end or at_the_start:
                mask(scores, first_key, row_position, sliding_window, lane)
            fold_softmax(scores, maxima, sums, acc, scale)
            multiply_weights_values(acc, scores, shared, lane)
            first_key = next_key
        cp_async_wait_group_0()  # an asynchronous copy must not outlive its block
        store_rows(acc, maxima, sums, out, lse, token, head, rows, warp_row, lane, scale)

    return flash_attention_2_kernel, threads, tiles.shared_bytes


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
    residual_window=0,
    lse=None,
):
    """Causal attention of new tokens over a paged cache, written into `out`; arguments as in kernels/attention/__init__.py.

    tiles: (query rows, keys, warps) of a block; the default suits the head_dim. residual_window: rows see their recent keys only
    (window_keys.py). lse: float32 [tokens, heads], for the log-sum-exp of every row (merge_states.py). float32, without these two, goes to
    flash_attention_2_float32.
    """
    inputs = (query, key_cache, value_cache, out, query_start, context_lens, block_tables)
    sizes = check_arguments(*inputs, scale, sliding_window, max_query_len)
    check_part(sizes, residual_window, lse)
    longest = query_len_bound(max_query_len, sizes)
    dtype = str(query.dtype)
    if dtype == "float32":
        check(residual_window == 0 and lse is None, "a residual window and the log-sum-exp need float16 or bfloat16 queries, not float32")
        flash_attention_2_float32.attention(*inputs, scale, sliding_window, max_query_len, stream=stream, tiles=tiles)
        return
    query_tile, key_tile, warps = tiles or tiles_for(sizes.head_dim, longest, sizes.heads, sizes.sequences)
    chosen, threads, shared_bytes = make_kernel(dtype, sizes.head_dim, sizes.block_size, query_tile, key_tile, warps, residual_window)
    grid = (-(-longest // query_tile), sizes.heads, sizes.sequences)
    arguments = (*inputs[:4], lse, *inputs[4:], float(scale * LOG2_E), int(sliding_window))
    launch(chosen, grid, threads, arguments, stream, shared_bytes)
