"""FlashAttention-2 for float32, on the plain cores: the structure of flash_attention_2, with register tiles in place of tensor cores.

Tensor cores would round float32 to TF32 (10 bits of mantissa). This path keeps all 24 bits, for models in float32 and for parity
tests; its ceiling is the float32 FMA rate. Maths, FLOPs and the walk over visible tiles are those of flash_attention_2.py (arXiv
2307.08691, section 3.1).

How threads map to data: grid (query tiles, heads, sequences); a block is ROW_THREADS x COLUMN_THREADS threads, the latter within one
warp. A thread owns `rows_each` rows and, of each tile, the keys column, column + COLUMN_THREADS, ...: for every head_dim element it
reads rows_each + keys_each numbers of shared memory for rows_each * keys_each FMAs. For the second product it owns the same rows and
the dimensions column, column + COLUMN_THREADS, ... of the output; the weights pass through shared memory. Rows of K are padded by one
float, so that neighbouring keys lie in neighbouring banks.
"""

import functools
import math

from numba import cuda, float32, int32, int64

from minllm.kernels.attention.arguments import LOG2_E, check_arguments, query_len_bound
from minllm.kernels.attention.online_softmax import finite_or_zero, reciprocal_or_zero
from minllm.kernels.attention.paged_cache import kv_head_of, make_lookup
from minllm.kernels.warp import ALL_LANES
from minllm.ptx import ex2, load_float32, token_stride
from minllm.runtime.kernel import check, kernel, launch

MINUS_INFINITY = -math.inf


def workspace_shapes(query, key_cache, block_tables):
    """FlashAttention-2 needs no scratch memory."""
    return {}


def tiles_for(head_dim):
    """(row threads, column threads, rows a thread, keys a thread): the largest tiles whose Q, K and V fit 99 KB of shared memory.

    That is what a block may have on GPUs of compute capability 8.6, 8.9 and 12.0; those of 8.0, 9.0 and 10.0 have more.
    """
    if head_dim <= 96:
        return 16, 16, 4, 4
    return (16, 16, 2, 2) if head_dim <= 232 else (16, 16, 2, 1)


@functools.cache
def make_kernel(head_dim, block_size, row_threads, column_threads, rows_each, keys_each):
    """(kernel, threads, query rows of a tile, shared bytes); column_threads is a power of two, at most 32."""
    block_of, element_of = make_lookup(block_size)
    threads = row_threads * column_threads
    query_tile, key_tile = row_threads * rows_each, column_threads * keys_each
    dims_each = -(-head_dim // column_threads)
    even = head_dim % column_threads == 0
    score_count, out_count = rows_each * keys_each, rows_each * dims_each
    stride = dims_each * column_threads + 1  # floats from one shared row to the next
    chunks = head_dim // 4
    keys_at = query_tile * stride  # shared memory, in floats: Q, K, V, weights
    values_at = keys_at + key_tile * stride
    weights_at = values_at + key_tile * stride
    weights_stride = key_tile + 1
    shared_bytes = 4 * (weights_at + query_tile * weights_stride)

    @cuda.jit(device=True)
    def load_query_tile(query, token, head, rows, shared):
        """Rows token to token + rows of one head into shared memory; rows of the tile beyond them become zeros."""
        heads = query.shape[1]
        chunk = cuda.threadIdx.x
        while chunk < query_tile * chunks:
            row, column = chunk // chunks, chunk % chunks * 4
            for i in range(4):
                shared[row * stride + column + i] = float32(0.0)
            if row < rows:
                numbers = load_float32(query, (int64(token + row) * heads + head) * head_dim + column)
                for i in range(4):
                    shared[row * stride + column + i] = numbers[i]
            chunk += threads

    @cuda.jit(device=True)
    def load_cache_tile(cache, block_table, kv_head, first_key, visible_start, visible_stop, shared, at):
        """Keys (or values) first_key to first_key + key_tile into shared memory; those outside of the visible range become zeros."""
        key_stride = token_stride(cache, int32(cache.shape[2]) * head_dim)
        chunk = cuda.threadIdx.x
        while chunk < key_tile * chunks:
            row, column = chunk // chunks, chunk % chunks * 4
            position = first_key + row
            for i in range(4):
                shared[at + row * stride + column + i] = float32(0.0)
            if visible_start <= position and position < visible_stop:
                index = element_of(block_of(block_table, position), position, key_stride, kv_head * head_dim + column)
                numbers = load_float32(cache, index)
                for i in range(4):
                    shared[at + row * stride + column + i] = numbers[i]
            chunk += threads

    @cuda.jit(device=True)
    def multiply_query_key(scores, shared, row_thread, column):
        """scores[rows_each, keys_each] = Q K^T."""
        for i in range(rows_each * keys_each):
            scores[i] = float32(0.0)
        for dim in range(head_dim):
            for i in range(rows_each):
                number = shared[(row_thread * rows_each + i) * stride + dim]
                for j in range(keys_each):
                    scores[i * keys_each + j] += number * shared[keys_at + (column + column_threads * j) * stride + dim]

    @cuda.jit(device=True)
    def fold_softmax(scores, maxima, sums, acc, shared, row_thread, column, first_key, first_position, sliding_window, scale):
        """Mask, and turn scores into weights (in shared memory); maxima, sums and accumulators follow."""
        for i in range(rows_each):
            row = row_thread * rows_each + i
            last = first_position + row
            first = last - sliding_window + 1 if sliding_window > 0 else 0
            maximum = maxima[i]
            for j in range(keys_each):
                key = first_key + column + column_threads * j
                score = scores[i * keys_each + j] * scale if first <= key and key <= last else float32(MINUS_INFINITY)
                scores[i * keys_each + j] = score
                maximum = max(maximum, score)
            lanes = column_threads // 2
            while lanes > 0:
                maximum = max(maximum, cuda.shfl_xor_sync(ALL_LANES, maximum, lanes))
                lanes //= 2
            shift = finite_or_zero(maximum)
            correction = ex2(maxima[i] - shift)
            maxima[i] = maximum
            sums[i] *= correction  # of this thread's keys only; the row's threads add theirs at the end
            for j in range(keys_each):
                weight = ex2(scores[i * keys_each + j] - shift)
                sums[i] += weight
                shared[weights_at + row * weights_stride + column + column_threads * j] = weight
            for j in range(dims_each):
                acc[i * dims_each + j] *= correction

    @cuda.jit(device=True)
    def multiply_weights_values(acc, shared, row_thread, column):
        """acc[rows_each, dims_each] += P V."""
        for key in range(key_tile):
            for i in range(rows_each):
                weight = shared[weights_at + (row_thread * rows_each + i) * weights_stride + key]
                for j in range(dims_each):
                    dim = column + column_threads * j
                    if even or dim < head_dim:  # nobody loads what lies beyond
                        acc[i * dims_each + j] += weight * shared[values_at + key * stride + dim]

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
        for i in range(rows_each * dims_each):
            acc[i] = float32(0.0)
        for i in range(rows_each):
            maxima[i] = float32(MINUS_INFINITY)
            sums[i] = float32(0.0)

        load_query_tile(query, token, head, rows, shared)
        while first_key < visible_stop:
            load_cache_tile(key_cache, block_table, kv_head, first_key, visible_start, visible_stop, shared, keys_at)
            load_cache_tile(value_cache, block_table, kv_head, first_key, visible_start, visible_stop, shared, values_at)
            cuda.syncthreads()
            multiply_query_key(scores, shared, row_thread, column)
            fold_softmax(
                scores, maxima, sums, acc, shared, row_thread, column, first_key, first_position, sliding_window, scale
            )
            cuda.syncwarp()  # a row's weights are written and read by threads of one warp
            multiply_weights_values(acc, shared, row_thread, column)
            cuda.syncthreads()  # before the next tiles overwrite these
            first_key += key_tile

        for i in range(rows_each):
            total = sums[i]
            lanes = column_threads // 2
            while lanes > 0:
                total += cuda.shfl_xor_sync(ALL_LANES, total, lanes)
                lanes //= 2
            inverse = reciprocal_or_zero(total)
            row = row_thread * rows_each + i
            for j in range(dims_each):
                dim = column + column_threads * j
                if row < rows and dim < head_dim:
                    out[token + row, head, dim] = acc[i * dims_each + j] * inverse

    return flash_attention_2_float32_kernel, threads, query_tile, shared_bytes


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
