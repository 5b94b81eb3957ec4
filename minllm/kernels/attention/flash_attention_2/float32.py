"""FlashAttention-2 for float32, on CUDA cores: kernel.py with register tiles instead of tensor cores.

Tensor cores would round float32 to TF32 (10 bits of mantissa). This path keeps all 24 bits, for models in float32 and for parity
tests; its upper bound is the float32 FMA rate. float32_tiles.py defines which rows and keys of a tile a thread owns, and the matmuls.
"""

import functools

from numba import cuda, float32, int32, int64

from minllm.kernels.arguments import dtype_name
from minllm.kernels.attention.common.arguments import LOG2_E, check_arguments, check_lse, query_len_bound
from minllm.kernels.attention.common.paged_cache import make_lookup
from minllm.kernels.attention.flash_attention_2 import kernel
from minllm.kernels.attention.flash_attention_2.float32_tiles import float32_tiles, make_float32_rows, make_matmuls, row_floats_of
from minllm.kernels.attention.flash_attention_2.kernel import Source
from minllm.kernels.attention.shared_context.share import shared_keys
from minllm.machine.occupancy import MULTIPROCESSORS
from minllm.ptx import load_float32, token_stride
from minllm.runtime.device import block_shared_bytes_here
from minllm.runtime.kernel import check, launch


def workspace_shapes(query, key_cache, block_tables):
    """FlashAttention-2 needs no scratch memory."""
    return {}


def tiles_for(head_dim):
    """(row threads, column threads, rows per thread, keys per thread): the largest tiles that fit a block's shared memory, at most 99 KB.

    A block may have 99 KB on GPUs of compute capability 8.6, 8.9 and 12.0, and 64 KB on those of 7.5; 8.0, 9.0 and 10.0 have more.
    """
    most = min(block_shared_bytes_here(), MULTIPROCESSORS[8, 9].block_shared_bytes)
    candidates = ((16, 16, *each) for each in ((4, 4), (2, 2), (2, 1), (1, 1)))
    return next(tiles for tiles in candidates if float32_tiles(head_dim, *tiles).shared_bytes <= most)


@functools.cache
def make_source(tiles, block_size):
    """The Source for float32 caches: loads of 16 bytes per thread, without prefetching."""
    block_of, element_of = make_lookup(block_size)
    head_dim, stride, threads = tiles.head_dim, row_floats_of(tiles.head_dim, tiles.lanes), tiles.threads
    query_chunks, key_chunks, chunks = tiles.query_tile * tiles.head_dim // 4, tiles.key_tile * tiles.head_dim // 4, tiles.head_dim // 4
    keys_at, values_at = tiles.keys_at, tiles.values_at

    @cuda.jit(device=True)
    def load_chunk(array, element, inside, shared, at):
        """Load four numbers into shared memory, zeros unless `inside`."""
        for i in range(4):
            shared[at + i] = float32(0.0)
        if inside:
            numbers = load_float32(array, element)
            for i in range(4):
                shared[at + i] = numbers[i]

    @cuda.jit(device=True)
    def load_cache_tile(cache, context, first_key, shared, at):
        """Load a tile of keys (or values) from first_key on, with zeros outside the visible range."""
        key_stride = token_stride(cache, int32(cache.shape[2]) * head_dim)
        chunk = cuda.threadIdx.x
        while chunk < key_chunks:
            row, column = chunk // chunks, chunk % chunks * 4
            position = first_key + row
            inside, element = context.start <= position and position < context.stop, int64(0)
            if inside:
                element = element_of(block_of(context.block_table, position), position, key_stride, context.kv_head * head_dim + column)
            load_chunk(cache, element, inside, shared, at + row * stride + column)
            chunk += threads

    @cuda.jit(device=True)
    def kv_heads(key_cache):
        return key_cache.shape[2]

    @cuda.jit(device=True)
    def scales(context, scale):
        return scale, float32(1.0)

    @cuda.jit(device=True)
    def begin(queries, context, first_key, buffers):
        chunk = cuda.threadIdx.x
        while chunk < query_chunks:
            row, column = chunk // chunks, chunk % chunks * 4
            element = (int64(queries.token + row) * queries.array.shape[1] + queries.head) * head_dim + column
            load_chunk(queries.array, element, row < queries.rows, buffers.shared, row * stride + column)
            chunk += threads

    @cuda.jit(device=True)
    def arrive_keys(context, first_key, buffers):
        cuda.syncthreads()  # no thread reads the last tiles any more
        load_cache_tile(context.keys, context, first_key, buffers.shared, keys_at)
        load_cache_tile(context.values, context, first_key, buffers.shared, values_at)
        cuda.syncthreads()

    @cuda.jit(device=True)
    def arrive_values(context, first_key, buffers):
        pass

    @cuda.jit(device=True)
    def finish():
        pass

    return Source(1, 1, kv_heads, scales, begin, arrive_keys, arrive_values, finish)


@functools.cache
def make_kernel(head_dim, block_size, row_threads, column_threads, rows_each, keys_each, share=None):
    """(kernel, threads, shared bytes, query rows per tile). share: as in flash_attention_2.make_kernel."""
    tiles = float32_tiles(head_dim, row_threads, column_threads, rows_each, keys_each)
    score_rows, out_rows = make_float32_rows(tiles.key_tile, column_threads), make_float32_rows(head_dim, column_threads)
    parts = make_source(tiles, block_size), make_matmuls(tiles), score_rows, out_rows
    made = kernel.make_kernel(tiles, *parts, shared_keys(share) if share else None)
    return made, tiles.threads, tiles.shared_bytes, tiles.query_tile


def attention(
    query, key_cache, value_cache, out, query_start, context_lens, block_tables, scale, sliding_window=0, max_query_len=None,
    workspace=None, stream=None, tiles=None, lse=None, share=None,
):  # fmt: skip
    """Causal attention of new float32 tokens over a paged cache, written into `out`; arguments as in kernels/attention/__init__.py.

    tiles: as `tiles_for` returns them; the default suits the head_dim. lse, share: as in flash_attention_2.attention.
    """
    inputs = (query, key_cache, value_cache, out, query_start, context_lens, block_tables)
    sizes = check_arguments(*inputs, scale, sliding_window, max_query_len)
    check(dtype_name(query.dtype) == "float32", f"flash_attention_2_float32 takes float32, not {query.dtype}: use flash_attention_2")
    check_lse(sizes, lse)
    tiles = tiles or tiles_for(sizes.head_dim)
    chosen, threads, shared_bytes, query_tile = make_kernel(sizes.head_dim, sizes.block_size, *tiles, share)
    grid = (-(-query_len_bound(max_query_len, sizes) // query_tile), sizes.heads, sizes.sequences)
    arguments = (query, key_cache, None, value_cache, None, out, lse, *inputs[4:], float(scale * LOG2_E), int(sliding_window))
    launch(chosen, grid, threads, arguments, stream, shared_bytes)
