"""FlashAttention-2 over a quantised KV cache: prompts, whole or in chunks, that read codes and multiply float16.

The maths, the walk over tiles and the products are those of flash_attention_2.py. Only the way of keys and values differs: their codes
come to registers while the tile before is multiplied, and go to shared memory as float16 (quantized_tiles.py). Queries in bfloat16 are
turned into float16 once, in shared memory, which costs them no bit; they must lie within its range, 65504.
A chunk's own tokens are read from the cache like all others, so that a token means the same to every later one, whichever chunk it
came in.

FLOPs: 4 * heads * head_dim a visible (query, key) pair, and for each tile of queries 4 an element of K and V to dequantise it: with 128
rows a tile, 4 for 512. Bytes: Q and out once; K and V once a tile of queries and head, bytes_a_head a key instead of 2 * head_dim.
Keys by channel have as many bytes, of which those of scales come a group at a time.

How threads map to data: as in flash_attention_2.py; tiles of codes by quantized_tiles.py, 16 bytes a thread.
Sources: Dao, arXiv 2307.08691; LMDeploy, "INT4/INT8 KV Cache".
"""

import functools

from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.attention.common.arguments import LOG2_E, check_arguments, check_part, query_len_bound
from minllm.kernels.attention.common.online_softmax import log_sum_exp, reciprocal_or_zero
from minllm.kernels.attention.common.paged_cache import kv_head_of
from minllm.kernels.attention.common.shared_tiles import make_tile_copies, row_words_of
from minllm.kernels.attention.common.window_keys import ALL, CODES, make_row_keys
from minllm.kernels.attention.flash_attention_2.channel_scales import make_channel_scales, scale_words_of
from minllm.kernels.attention.flash_attention_2.quantized_tiles import make_quantized_tiles
from minllm.kernels.attention.flash_attention_2.warp_tiles import MINUS_INFINITY, WarpTiles, make_warp_products, make_warp_softmax
from minllm.ptx import cp_async_commit_group, cp_async_wait_group_0, pack_f16x2, unpack_bf16x2
from minllm.runtime.kernel import check, kernel, launch
from minllm.tiles.rows import make_rows


def workspace_shapes(query, key_cache, block_tables):
    """It needs no scratch memory."""
    return {}


def tiles_for(kv_format, max_query_len):
    """(query rows, keys, warps) of a block's tiles: 128 rows share the work of dequantising where there are as many.

    Measured on an H200 for one prompt of 4,096 tokens with heads of 128; a shared memory of 99 KB (Ada) holds all of them.
    """
    head_dim = kv_format.head_dim
    if head_dim > 128:
        return 64, 32, 4
    if max_query_len <= 64:
        return 64, 64, 4
    return (128, 64, 4) if head_dim <= 64 else (128, 64 if kv_format.bits == 4 else 96, 8)


@functools.cache
def make_kernel(dtype, kv_format, block_size, query_tile, key_tile, warps, residual_window=0):
    """(kernel, threads, shared bytes) for 16-bit `dtype`; query_tile is a multiple of 16 * warps, key_tile of 16.

    residual_window: 0, or that of window_keys.py, of whose keys these are the codes.
    """
    head_dim, is_float = kv_format.head_dim, kv_format.is_float
    tiles = WarpTiles(head_dim, query_tile, key_tile, warps)
    threads, row_tiles, keys_at, values_at = tiles.threads, tiles.row_tiles, tiles.keys_at, tiles.values_at
    query_in_registers, query_words = tiles.query_in_registers, tiles.query_words
    score_count, out_count = tiles.score_count, tiles.out_count
    steps, half_rows = tiles.padded_dim // 16, 2 * row_tiles
    copy_query_tile, _ = make_tile_copies(head_dim, block_size, query_tile, key_tile, threads)
    by_channel, shared_bytes, copy_scales, dequantize_word = kv_format.keys_by_channel, tiles.shared_bytes, None, None
    if by_channel:
        copy_scales, dequantize_word = make_channel_scales(kv_format, block_size, key_tile, threads, shared_bytes // 4)
        shared_bytes += 4 * scale_words_of(kv_format, key_tile)
    fetch_keys, store_keys, word_count, pair_count = make_quantized_tiles(kv_format, block_size, key_tile, threads, dequantize_word)
    fetch_values, store_values, *_ = make_quantized_tiles(kv_format, block_size, key_tile, threads)
    score_rows = make_rows(key_tile, "float16", row_tiles)
    out_rows = make_rows(head_dim, dtype, row_tiles, tiles.padded_dim)
    load_query_fragments, multiply_query_key, multiply_weights_values = make_warp_products("float16", tiles, score_rows)
    part = CODES if residual_window else ALL
    mask, fold_softmax = make_warp_softmax(tiles, score_rows, out_rows, part, residual_window)
    first_key_of, last_key_of = make_row_keys(part, residual_window)
    narrow, row_words, query_words_a_row = dtype == "bfloat16", row_words_of(head_dim), tiles.padded_dim // 2

    @cuda.jit(device=True)
    def to_float16(shared):
        """The tile of queries from bfloat16 to float16, in place."""
        i = int32(cuda.threadIdx.x)
        while i < query_tile * query_words_a_row:
            at = int32(i // query_words_a_row * row_words + i % query_words_a_row)
            low, high = unpack_bf16x2(shared[at])
            shared[at] = pack_f16x2(low, high)
            i += threads

    @cuda.jit(device=True)
    def store_rows(acc, maxima, sums, factor, out, lse, token, head, rows, warp_row, lane, scale):
        """out = factor * acc / sums, and the log-sum-exp where lse is not None."""
        for half in range(half_rows):
            total = out_rows.sum(sums[half])
            inverse = factor * reciprocal_or_zero(total)
            row = warp_row + out_rows.position(half, lane)
            if lse is not None:
                if row < rows and lane % 4 == 0:
                    lse[token + row, head] = log_sum_exp(maxima[half], total, scale)
            index = (int64(token + row) * out.shape[1] + head) * head_dim
            out_rows.store(acc, half, inverse, out, index, row < rows, lane)

    @kernel(launch_bounds=(threads, 1 if warps > 4 else tiles.blocks_at_once))
    def flash_attention_2_quantized_kernel(
        query,  # [tokens, heads, head_dim]
        key_codes,  # [num_blocks, kv_heads, block_size, code_bytes]
        key_scales,  # [num_blocks, kv_heads, block_size, groups, 2], by channel [.., block_size / token_group, head_dim, 2], or [kv_heads]
        value_codes,
        value_scales,
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
        kv_head = kv_head_of(head, query.shape[1], key_codes.shape[1])
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
        factor = float32(1.0)
        if is_float:  # value = code * scale, one scale for all keys of the head
            scale = float32(scale * key_scales[kv_head])
            factor = value_scales[kv_head]

        query_fragments = cuda.local.array(query_words, uint32)
        scores = cuda.local.array(score_count, float32)
        acc = cuda.local.array(out_count, float32)
        maxima = cuda.local.array(half_rows, float32)
        sums = cuda.local.array(half_rows, float32)
        words, pairs = cuda.local.array(word_count, uint32), cuda.local.array(pair_count, uint32)
        for i in range(out_count):
            acc[i] = float32(0.0)
        for i in range(half_rows):
            maxima[i] = float32(MINUS_INFINITY)
            sums[i] = float32(0.0)

        copy_query_tile(query, token, head, rows, shared)
        if by_channel:
            if first_key < visible_stop:
                copy_scales(key_scales, block_table, kv_head, first_key, visible_start, visible_stop, shared)
        cp_async_commit_group()
        if first_key < visible_stop:
            fetch_keys(key_codes, key_scales, block_table, kv_head, first_key, visible_start, visible_stop, words, pairs)
        cp_async_wait_group_0()
        cuda.syncthreads()
        if narrow:
            to_float16(shared)
            cuda.syncthreads()
        if query_in_registers:
            for row_tile in range(row_tiles):
                for step in range(steps):
                    load_query_fragments(query_fragments, 4 * (row_tile * steps + step), shared, warp_row, row_tile, step, lane)
        while first_key < visible_stop:
            store_keys(words, pairs, shared, keys_at)
            cuda.syncthreads()  # this tile of K is there, and nobody reads the last tile of V any more
            next_key = int32(first_key + key_tile)
            if by_channel:
                if next_key < visible_stop:
                    copy_scales(key_scales, block_table, kv_head, next_key, visible_start, visible_stop, shared)
                cp_async_commit_group()
            fetch_values(value_codes, value_scales, block_table, kv_head, first_key, visible_start, visible_stop, words, pairs)
            multiply_query_key(scores, query_fragments, shared, warp_row, lane)
            store_values(words, pairs, shared, values_at)
            if next_key < visible_stop:
                fetch_keys(key_codes, key_scales, block_table, kv_head, next_key, visible_start, visible_stop, words, pairs)
            if by_channel:
                cp_async_wait_group_0()
            cuda.syncthreads()  # this tile of V is there, and the next scales of K, and nobody reads this tile of K any more
            row_position = first_position + warp_row + lane // 4
            at_the_end = next_key > last_key_of(first_position) + 1
            at_the_start = first_key < first_key_of(int32(first_position + query_tile - 1), sliding_window)
            if at_the_end or at_the_start:
                mask(scores, first_key, row_position, sliding_window, lane)
            fold_softmax(scores, maxima, sums, acc, scale)
            multiply_weights_values(acc, scores, shared, lane)
            first_key = next_key
        store_rows(acc, maxima, sums, factor, out, lse, token, head, rows, warp_row, lane, scale)

    return flash_attention_2_quantized_kernel, threads, shared_bytes


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
    """Causal attention of new tokens over QuantizedCaches, written into `out`; arguments as in kernels/attention/__init__.py.

    tiles: (query rows, keys, warps) of a block; the default suits the head_dim. residual_window: rows do not see their recent keys
    (window_keys.py). lse: float32 [tokens, heads], for the log-sum-exp of every row (merge_states.py). Queries are float16 or bfloat16.
    """
    batch = (query_start, context_lens, block_tables)
    sizes = check_arguments(query, key_cache, value_cache, out, *batch, scale, sliding_window, max_query_len, quantized=True)
    dtype = str(query.dtype)
    check(dtype != "float32", "attention over a quantised cache takes float16 and bfloat16 queries, not float32: give LLM() such a dtype")
    check_part(sizes, residual_window, lse, key_cache.format)
    longest = query_len_bound(max_query_len, sizes)
    query_tile, key_tile, warps = tiles or tiles_for(key_cache.format, longest)
    chosen, threads, shared_bytes = make_kernel(dtype, key_cache.format, sizes.block_size, query_tile, key_tile, warps, residual_window)
    grid = (-(-longest // query_tile), sizes.heads, sizes.sequences)
    arrays = (query, key_cache.codes, key_cache.scales, value_cache.codes, value_cache.scales, out, lse, *batch)
    launch(chosen, grid, threads, (*arrays, float(scale * LOG2_E), int(sliding_window)), stream, shared_bytes)
