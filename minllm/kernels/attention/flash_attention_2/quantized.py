"""FlashAttention-2 over a quantised KV cache, for prompts, whole or in chunks: reads codes and multiplies float16.

The maths, the loop over tiles and the matmuls are those of kernel.py and tensor_core.py. Only the source of keys and values differs: codes
are loaded into registers while the tile before is multiplied, and stored to shared memory as float16 (quantized_tiles.py). Queries in
bfloat16 are converted to float16 once, in shared memory, without loss of bits; they must lie within its range, 65504.
A chunk's own tokens are read from the cache like all others, so that every later token sees the same keys and values, however the prompt
is cut into chunks.

FLOPs: 4 * heads * head_dim per visible (query, key) pair, and for each tile of queries 4 per element of K and V to dequantise it: with 128
rows per tile, 4 for 512. Bytes: Q and out once; K and V once per tile of queries and head, bytes_per_head per key instead of 2 * head_dim.
Keys by channel take as many bytes, and their scales are loaded one group at a time.

Threads to data: as in kernel.py; tiles of codes as in quantized_tiles.py, 16 bytes per thread.
Sources: Dao, arXiv 2307.08691; LMDeploy, "INT4/INT8 KV Cache".
"""

import functools

from numba import cuda, float32, int32

from minllm.kernels.arguments import dtype_name
from minllm.kernels.attention.common.arguments import LOG2_E, check_arguments, check_lse, query_len_bound
from minllm.kernels.attention.common.paged_cache import make_lookup
from minllm.kernels.attention.common.window_keys import ALL, CODES, check_window, make_row_keys
from minllm.kernels.attention.flash_attention_2 import kernel
from minllm.kernels.attention.flash_attention_2.channel_scales import make_channel_scales, scale_words_of
from minllm.kernels.attention.flash_attention_2.kernel import Source
from minllm.kernels.attention.flash_attention_2.quantized_tiles import make_quantized_tiles
from minllm.kernels.attention.flash_attention_2.tensor_core import make_tensor_core_parts, padded_dim_of, warp_tiles
from minllm.ptx import cp_async_commit_group, cp_async_wait_group_0, pack_f16x2, unpack_bf16x2
from minllm.runtime.device import AMPERE, capability_here
from minllm.runtime.kernel import check, launch
from minllm.tiles.cp_async import make_copies, row_words_of


def workspace_shapes(query, key_cache, block_tables):
    """FlashAttention-2 needs no scratch memory."""
    return {}


def tiles_for(kv_format, max_query_len):
    """(query rows, keys, warps) of a block's tiles: 128 rows, if there are that many, share the work of dequantising.

    All these tiles fit 99 KB of shared memory (Ada); only the smaller ones fit 64 KB (Turing).
    """
    head_dim, is_small = kv_format.head_dim, capability_here() < AMPERE
    if head_dim > 128:
        return (32, 32 if kv_format.bits == 4 else 16, 2) if is_small else (64, 32, 4)
    if max_query_len <= 64 or is_small and head_dim > 64:
        return 64, 64, 4
    return (128, 64, 4) if head_dim <= 64 else (128, 64 if kv_format.bits == 4 else 96, 8)


@functools.cache
def make_to_float16(tiles):
    """to_float16(shared): device function that converts the query tile from bfloat16 to float16, in place."""
    words_per_row, pitch, threads = padded_dim_of(tiles.head_dim) // 2, row_words_of(tiles.head_dim), tiles.threads
    word_count = tiles.query_tile * words_per_row

    @cuda.jit(device=True)
    def to_float16(shared):
        i = int32(cuda.threadIdx.x)
        while i < word_count:
            at = int32(i // words_per_row * pitch + i % words_per_row)
            low, high = unpack_bf16x2(shared[at])
            shared[at] = pack_f16x2(low, high)
            i += threads

    return to_float16


@functools.cache
def make_source(tiles, dtype, kv_format, block_size):
    """The Source of codes, for queries of 16-bit `dtype`; registers hold a tile's codes while the tile before is multiplied.

    Scales of keys by channel follow the tiles in shared memory.
    """
    is_float, by_channel, narrow = kv_format.is_float, kv_format.keys_by_channel, dtype == "bfloat16"
    key_tile, keys_at, values_at, threads = tiles.key_tile, tiles.keys_at, tiles.values_at, tiles.threads
    copies = make_copies(tiles.head_dim, tiles.query_tile, key_tile, threads, *make_lookup(block_size))
    to_float16 = make_to_float16(tiles)
    channels = make_channel_scales(kv_format, block_size, key_tile, threads, tiles.end) if by_channel else None
    key_tiles = make_quantized_tiles(kv_format, block_size, key_tile, threads, channels)
    value_tiles = make_quantized_tiles(kv_format, block_size, key_tile, threads)

    @cuda.jit(device=True)
    def kv_heads(key_cache):
        return key_cache.shape[1]

    @cuda.jit(device=True)
    def scales(context, scale):
        if is_float:  # value = code * scale, one scale for all keys of the head
            return float32(scale * context.key_scales[context.kv_head]), context.value_scales[context.kv_head]
        else:
            return scale, float32(1.0)

    @cuda.jit(device=True)
    def begin(queries, context, first_key, buffers):
        copies.matrix(queries.array, queries.token, queries.head, queries.rows, buffers.shared)
        if by_channel:
            if first_key < context.stop:
                channels.copy(context, first_key, buffers.shared)
        cp_async_commit_group()
        if first_key < context.stop:
            key_tiles.fetch(context.keys, context.key_scales, context, first_key, buffers)
        cp_async_wait_group_0()
        cuda.syncthreads()
        if narrow:
            to_float16(buffers.shared)
            cuda.syncthreads()

    @cuda.jit(device=True)
    def arrive_keys(context, first_key, buffers):
        key_tiles.store(buffers, keys_at)
        cuda.syncthreads()  # this tile of K is complete, and no thread reads the last tile of V any more
        if by_channel:
            next_key = int32(first_key + key_tile)
            if next_key < context.stop:
                channels.copy(context, next_key, buffers.shared)
            cp_async_commit_group()
        value_tiles.fetch(context.values, context.value_scales, context, first_key, buffers)

    @cuda.jit(device=True)
    def arrive_values(context, first_key, buffers):
        value_tiles.store(buffers, values_at)
        next_key = int32(first_key + key_tile)
        if next_key < context.stop:
            key_tiles.fetch(context.keys, context.key_scales, context, next_key, buffers)
        if by_channel:
            cp_async_wait_group_0()
        cuda.syncthreads()  # this tile of V and the next scales of K are complete, and no thread reads this tile of K any more

    @cuda.jit(device=True)
    def finish():
        pass

    return Source(key_tiles.code_words, key_tiles.scale_words, kv_heads, scales, begin, arrive_keys, arrive_values, finish)


@functools.cache
def make_kernel(dtype, kv_format, block_size, query_tile, key_tile, warps, residual_window=0):
    """(kernel, threads, shared bytes) for 16-bit `dtype`; query_tile is a multiple of 16 * warps, key_tile of 16.

    residual_window: 0, or a residual window (window_keys.py), of which this kernel reads the codes.
    """
    tiles = warp_tiles(kv_format.head_dim, query_tile, key_tile, warps)
    source, parts = make_source(tiles, dtype, kv_format, block_size), make_tensor_core_parts(tiles, "float16", dtype)
    made = kernel.make_kernel(tiles, source, *parts, make_row_keys(CODES if residual_window else ALL, residual_window))
    scale_bytes = 4 * scale_words_of(kv_format, key_tile) if kv_format.keys_by_channel else 0
    return made, tiles.threads, tiles.shared_bytes + scale_bytes


def attention(
    query, key_cache, value_cache, out, query_start, context_lens, block_tables, scale, sliding_window=0, max_query_len=None,
    workspace=None, stream=None, tiles=None, residual_window=0, lse=None,
):  # fmt: skip
    """Causal attention of new tokens over QuantizedCaches, written into `out`; arguments as in kernels/attention/__init__.py.

    tiles: (query rows, keys, warps) of a block; the default suits the head_dim. residual_window: if not 0, rows do not see their recent
    keys (window_keys.py). lse: float32 [tokens, heads], receives the log-sum-exp of every row (merge_states.py). Queries are float16 or
    bfloat16.
    """
    batch = (query_start, context_lens, block_tables)
    sizes = check_arguments(query, key_cache, value_cache, out, *batch, scale, sliding_window, max_query_len, quantized=True)
    dtype = dtype_name(query.dtype)
    check(dtype != "float32", "attention over a quantised cache takes float16 and bfloat16 queries, not float32: give LLM() such a dtype")
    check_window(residual_window, key_cache.format)
    check_lse(sizes, lse)
    longest = query_len_bound(max_query_len, sizes)
    query_tile, key_tile, warps = tiles or tiles_for(key_cache.format, longest)
    chosen, threads, shared_bytes = make_kernel(dtype, key_cache.format, sizes.block_size, query_tile, key_tile, warps, residual_window)
    grid = (-(-longest // query_tile), sizes.heads, sizes.sequences)
    arrays = (query, key_cache.codes, key_cache.scales, value_cache.codes, value_cache.scales, out, lse, *batch)
    launch(chosen, grid, threads, (*arrays, float(scale * LOG2_E), int(sliding_window)), stream, shared_bytes)
