"""Copies tiles of 16-bit elements to shared memory by cp.async, in padded rows for ldmatrix and mma.sync.

A row of a tile has `columns` numbers, padded with zeros to a multiple of 16, the depth of an mma step, and then by 16 bytes more: rows then
start at odd multiples of 16 bytes from each other, and the eight rows of 16 bytes that ldmatrix reads at a time lie in different banks
(rows of 128 or 256 bytes would put all eight into the same four banks). If a row is not a multiple of 128 bytes (32 or 80 columns), eight
neighbouring copies extend over the padding into the next row, and two of them conflict in a bank: that slows a copy once, whereas ldmatrix
reads the row once per warp.

cp.async copies 16 bytes per thread directly from global to shared memory, without registers, while the block computes. A thread keeps its
column and takes every rows_at_once-th row. Rows outside the range given by the caller are filled with zeros and not read: their memory may
hold NaN, and 0 * NaN is NaN in a matmul. The caller commits the copies to a group and waits for it.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

from numba import cuda, int32, int64, uint32

from minllm.ptx import cp_async_16, shared_address, token_stride


def row_words_of(columns):
    """32-bit words from one row of a tile to the next."""
    return (-(-columns // 16) * 16 + 8) // 2


class Copies(NamedTuple):
    """Device functions that start the copies of a tile; all threads of the block call them."""

    matrix: Callable  # matrix(array, token, head, rows, shared): `rows` rows from `token` on of array [tokens, heads, columns], to word 0
    paged: Callable  # paged(cache, block_table, kv_head, first, start, stop, shared, at): tokens of a paged cache from `first` to word `at`


@functools.cache
def make_copies(columns, matrix_rows, paged_rows, threads, block_of, element_of):
    """The Copies of tiles [matrix_rows, columns] of a matrix, and [paged_rows, columns] of a paged cache, by blocks of `threads` threads.

    block_of, element_of: the lookup of a token in the cache (attention/common/paged_cache.py). `paged` reads only tokens start to stop.
    """
    row_words = row_words_of(columns)
    chunks = -(-columns // 16) * 2  # chunks of 16 bytes per row
    rows_at_once = min(threads // chunks, paged_rows)  # rows that the block copies at a time, one chunk per thread
    copy_threads, matrix_passes, paged_passes = rows_at_once * chunks, -(-matrix_rows // rows_at_once), -(-paged_rows // rows_at_once)
    all_copy, whole_passes = copy_threads == threads, paged_rows % rows_at_once == 0 and matrix_rows % rows_at_once == 0

    @cuda.jit(device=True)
    def matrix(array, token, head, rows, shared):
        column = cuda.threadIdx.x % chunks * 8
        for i in range(matrix_passes):
            row = cuda.threadIdx.x // chunks + i * rows_at_once
            if (all_copy or cuda.threadIdx.x < copy_threads) and (whole_passes or row < matrix_rows):
                inside = row < rows and column < columns
                start = (int64(token + row) * array.shape[1] + head) * columns + column if inside else int64(0)
                cp_async_16(shared_address(shared, row * row_words + column // 2), array, start, 16 if inside else 0)

    @cuda.jit(device=True)
    def paged(cache, block_table, kv_head, first, start, stop, shared, at):
        blocks = cuda.local.array(paged_passes, int32)
        column, first_row = int32(cuda.threadIdx.x % chunks * 8), int32(cuda.threadIdx.x // chunks)
        for i in range(paged_passes):  # all blocks are looked up before the first copy, so that the loads of the table overlap
            position = int32(first + first_row + i * rows_at_once)
            blocks[i] = block_of(block_table, max(start, min(position, stop - 1)))
        stride, within = token_stride(cache, int32(cache.shape[2]) * columns), kv_head * columns + column
        to = shared_address(shared, at + first_row * row_words + column // 2)
        for i in range(paged_passes):
            row = int32(first_row + i * rows_at_once)
            position = int32(first + row)
            inside = start <= position and position < stop and column < columns
            if (all_copy or cuda.threadIdx.x < copy_threads) and (whole_passes or row < paged_rows):
                element = element_of(blocks[i], position, stride, within)  # outside the range any address will do: nothing is read
                cp_async_16(uint32(to + 4 * i * rows_at_once * row_words), cache, element, 16 if inside else 0)

    return Copies(matrix, paged)
