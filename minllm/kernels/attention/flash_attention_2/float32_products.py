"""What a thread of FlashAttention-2 in float32 does with a tile of keys: both products on its own registers, and the softmax between.

For every element of head_dim it reads rows_each + keys_each numbers of shared memory for rows_each * keys_each FMAs. The weights pass
through shared memory to the second product, whose dimensions are spread over the row's threads as keys were in the first.
"""

import functools
import math

from numba import cuda, float32

from minllm.kernels.attention.common.online_softmax import finite_or_zero, reciprocal_or_zero
from minllm.kernels.warp import ALL_LANES
from minllm.ptx import ex2

MINUS_INFINITY = -math.inf


@functools.cache
def make_products(tiles):
    """(multiply_query_key, multiply_weights_values)."""
    head_dim, column_threads, stride = tiles.head_dim, tiles.column_threads, tiles.stride
    rows_each, keys_each, dims_each = tiles.rows_each, tiles.keys_each, tiles.dims_each
    key_tile, keys_at, values_at = tiles.key_tile, tiles.keys_at, tiles.values_at
    weights_at, weights_stride = tiles.weights_at, tiles.weights_stride
    even = head_dim % column_threads == 0

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
    def multiply_weights_values(acc, shared, row_thread, column):
        """acc[rows_each, dims_each] += P V."""
        for key in range(key_tile):
            for i in range(rows_each):
                weight = shared[weights_at + (row_thread * rows_each + i) * weights_stride + key]
                for j in range(dims_each):
                    dim = column + column_threads * j
                    if even or dim < head_dim:  # nobody loads what lies beyond
                        acc[i * dims_each + j] += weight * shared[values_at + key * stride + dim]

    return multiply_query_key, multiply_weights_values


@functools.cache
def make_softmax(tiles):
    """(clear, fold_softmax, store_rows): the state of a thread's rows before, between and after the products."""
    head_dim, column_threads = tiles.head_dim, tiles.column_threads
    rows_each, keys_each, dims_each = tiles.rows_each, tiles.keys_each, tiles.dims_each
    weights_at, weights_stride = tiles.weights_at, tiles.weights_stride

    @cuda.jit(device=True)
    def clear(maxima, sums, acc):
        """The state of no keys."""
        for i in range(rows_each * dims_each):
            acc[i] = float32(0.0)
        for i in range(rows_each):
            maxima[i] = float32(MINUS_INFINITY)
            sums[i] = float32(0.0)

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
    def store_rows(out, token, head, rows, sums, acc, row_thread, column):
        """out = acc / sum, for the tile's rows below `rows`."""
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

    return clear, fold_softmax, store_rows
