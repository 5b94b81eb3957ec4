"""FlashAttention-2's tiles in float32: which thread owns which rows and columns, and the matmuls on CUDA cores.

A block is row_threads x column_threads threads, the latter within one warp. A thread owns rows_each rows and, of each tile, the keys
column, column + column_threads, ...; of the output it owns the same rows and the dimensions column, column + column_threads, ... Shared
memory holds Q, K, V and the weights.

For every element of head_dim a thread reads rows_each + keys_each numbers from shared memory for rows_each * keys_each FMAs. The weights
pass through shared memory from Q K^T, where a row's threads split its keys, to P V, where they split its dimensions. Indices of the inner
loops are unsigned: Numba adds the array's length to a negative index, and that test would cost as many instructions as the FMAs.
"""

import functools
import math

from numba import cuda, float32, int32, int64, uint64

from minllm.kernels.attention.flash_attention_2.kernel import Matmuls, Tiles
from minllm.ptx import ex2, float_as_uint, store_32
from minllm.tiles.rows import Rows, is_selected
from minllm.tiles.warp import ALL_LANES


@functools.cache
def float32_tiles(head_dim, row_threads, column_threads, rows_each, keys_each):
    """The Tiles of a block; column_threads is a power of two, at most 32. Q stays in shared memory."""
    query_tile, key_tile, row_floats = row_threads * rows_each, column_threads * keys_each, row_floats_of(head_dim, column_threads)
    keys_at, values_at, weights_at = query_tile * row_floats, (query_tile + key_tile) * row_floats, (query_tile + 2 * key_tile) * row_floats
    return Tiles(
        head_dim=head_dim, query_tile=query_tile, key_tile=key_tile, threads=row_threads * column_threads,
        lanes=column_threads, lane_rows=rows_each, row_count=rows_each,
        query_words=1, score_count=rows_each * keys_each, out_count=rows_each * -(-head_dim // column_threads),
        keys_at=keys_at, values_at=values_at, end=weights_at + query_tile * (key_tile + 1), shared_type=float32,
    )  # fmt: skip


def row_floats_of(head_dim, column_threads):
    """Floats from one row of Q, K or V to the next: padded by one, so that neighbouring keys fall into different banks."""
    return -(-head_dim // column_threads) * column_threads + 1


@functools.cache
def make_matmuls(tiles):
    """The Matmuls of these tiles in float32."""
    head_dim, key_tile, column_threads, rows_each = tiles.head_dim, tiles.key_tile, tiles.lanes, tiles.lane_rows
    keys_each, dims_each, stride = key_tile // column_threads, -(-head_dim // column_threads), row_floats_of(head_dim, column_threads)
    keys_at, values_at, weights_stride = tiles.keys_at, tiles.values_at, key_tile + 1
    weights_at = tiles.end - tiles.query_tile * weights_stride
    even = head_dim % column_threads == 0

    @cuda.jit(device=True)
    def begin(query, shared, lane_row, lane):
        pass

    @cuda.jit(device=True)
    def multiply_query_key(scores, query, shared, lane_row, lane):
        for i in range(rows_each * keys_each):
            scores[i] = float32(0.0)
        query_at, key_at = lane_row * stride, keys_at + lane * stride
        for dim in range(head_dim):
            for i in range(rows_each):
                number = shared[uint64(query_at + i * stride + dim)]
                for j in range(keys_each):
                    scores[i * keys_each + j] += number * shared[uint64(key_at + column_threads * j * stride + dim)]

    @cuda.jit(device=True)
    def multiply_weights_values(acc, weights, shared, lane_row, lane):
        for i in range(rows_each):
            for j in range(keys_each):
                shared[weights_at + (lane_row + i) * weights_stride + lane + column_threads * j] = weights[i * keys_each + j]
        cuda.syncwarp()  # a row's weights are written and read by threads of one warp
        row_at, value_at = weights_at + lane_row * weights_stride, values_at + lane
        for key in range(key_tile):
            for i in range(rows_each):
                weight = shared[uint64(row_at + i * weights_stride + key)]
                for j in range(dims_each):
                    if even or lane + column_threads * j < head_dim:  # the padding beyond head_dim is never loaded
                        acc[i * dims_each + j] += weight * shared[uint64(value_at + key * stride + column_threads * j)]

    return Matmuls(begin, multiply_query_key, multiply_weights_values)


@functools.cache
def make_float32_rows(columns, column_threads):
    """Rows of `columns` float32 elements, of which each of `column_threads` neighbouring lanes holds every column_threads-th."""
    each = -(-columns // column_threads)

    @cuda.jit(device=True)
    def position(row, lane):
        return int32(row)

    @cuda.jit(device=True)
    def column(lane):
        return int32(lane)

    @cuda.jit(device=True)
    def mask(acc, row, number, first, last):
        for j in range(each):
            column = int32(number + column_threads * j)
            if column > last or column < first:
                acc[row * each + j] = float32(-math.inf)

    @cuda.jit(device=True)
    def maximum(acc, row, start):
        highest = start
        for j in range(each):
            highest = max(highest, acc[row * each + j])
        distance = column_threads // 2
        while distance > 0:
            highest = max(highest, cuda.shfl_xor_sync(ALL_LANES, highest, distance))
            distance //= 2
        return highest

    @cuda.jit(device=True)
    def exponentials(acc, row, maximum, scale, total):
        for j in range(each):
            acc[row * each + j] = ex2((acc[row * each + j] - maximum) * scale)
            total += acc[row * each + j]
        return total

    @cuda.jit(device=True)
    def sum_of_lanes(total):
        distance = column_threads // 2
        while distance > 0:
            total += cuda.shfl_xor_sync(ALL_LANES, total, distance)
            distance //= 2
        return total

    @cuda.jit(device=True)
    def scale(acc, row, factor):
        for j in range(each):
            acc[row * each + j] *= factor

    @cuda.jit(device=True)
    def store(acc, row, factor, out, start, inside, lane):
        for j in range(each):
            dim = int32(lane + column_threads * j)
            if inside and dim < columns:
                store_32(out, start + int64(dim), float_as_uint(acc[row * each + j] * factor))

    @cuda.jit(device=True)
    def select(acc, row, number, first, words, at):
        for j in range(each):
            if not is_selected(words, at, int32(number + column_threads * j - first)):
                acc[row * each + j] = float32(-math.inf)

    return Rows(position, column, mask, maximum, None, exponentials, sum_of_lanes, scale, None, store, select)
