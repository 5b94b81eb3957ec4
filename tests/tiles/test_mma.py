"""Tiles copied by cp.async and multiplied by mma.sync: S = A B^T and O = S V against NumPy, from a matrix and from a paged cache."""

import ml_dtypes
import numpy as np
import pytest
from numba import cuda, float32, int32, uint32

from minllm.kernels.attention.common.paged_cache import make_lookup
from minllm.machine.numba_cuda import types
from minllm.ptx import cp_async_commit_group, cp_async_wait_group_0
from minllm.runtime.kernel import kernel
from minllm.tiles.cp_async import make_copies, row_words_of
from minllm.tiles.mma import make_warp_matmuls
from minllm.tiles.rows import make_rows
from tests.tiles.compiled import unwanted

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
BLOCK_SIZE, WARPS, KEYS = 16, 2, 32


def make_kernel(dtype, columns, row_tiles, in_registers):
    """out = (A B^T) V, the weights rounded to 16 bits, and shared bytes; A of one head, B and V from a paged cache."""
    row_count, threads, depth = 16 * row_tiles * WARPS, 32 * WARPS, -(-columns // 16) * 16
    copies = make_copies(columns, row_count, KEYS, threads, *make_lookup(BLOCK_SIZE))
    keys_at = row_count * row_words_of(columns)
    values_at = keys_at + KEYS * row_words_of(columns)
    score_rows, out_rows = make_rows(KEYS, dtype, row_tiles), make_rows(columns, dtype, row_tiles, depth)
    matmuls = make_warp_matmuls(dtype, depth, KEYS, row_tiles, keys_at, values_at, in_registers, score_rows)
    left_words, score_count, out_count = (depth // 4 if in_registers else 4) * row_tiles, KEYS // 2 * row_tiles, depth // 2 * row_tiles

    @kernel
    def two_matmuls_kernel(a, keys, values, block_table, out, rows, first, start, stop):
        shared = cuda.shared.array(0, uint32, alignment=128)
        lane, row = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32 * 16 * row_tiles
        copies.matrix(a, 0, 1, rows, shared)
        copies.paged(keys, block_table, 1, first, start, stop, shared, keys_at)
        copies.paged(values, block_table, 1, first, start, stop, shared, values_at)
        cp_async_commit_group()
        cp_async_wait_group_0()
        cuda.syncthreads()
        left, scores = cuda.local.array(left_words, uint32), cuda.local.array(score_count, float32)
        acc = cuda.local.array(out_count, float32)
        for i in range(out_count):
            acc[i] = float32(0)
        matmuls.load_left(left, shared, row, lane)
        matmuls.multiply_transposed(scores, left, shared, row, lane)
        matmuls.multiply(acc, scores, shared, lane)
        for i in range(2 * row_tiles):
            where = int32(row + out_rows.position(i, lane))
            out_rows.store(acc, i, float32(1), out, where * columns, where < rows, lane)

    return two_matmuls_kernel, threads, 4 * (values_at + KEYS * row_words_of(columns))


@pytest.mark.parametrize("in_registers", [True, False])
@pytest.mark.parametrize("columns, row_tiles", [(40, 1), (64, 2), (96, 1)])
def test_both_matmuls_are_numpys(columns, row_tiles, in_registers):
    """Rows behind `rows`, and keys outside of the range, are zeros though NaN lies there; tokens lie in blocks in any order."""
    random = np.random.default_rng(columns)
    made, threads, shared_bytes = make_kernel("bfloat16", columns, row_tiles, in_registers)
    rows, first, start, stop = 16 * row_tiles * WARPS - 3, 16, 19, 45
    a = random.standard_normal((rows, 2, columns)).astype(BFLOAT16)
    keys, values = random.standard_normal((2, 4, BLOCK_SIZE, 2, columns)).astype(BFLOAT16)
    block_table = np.int32([3, 0, 2])
    tokens = np.arange(first, first + KEYS)
    at = block_table[tokens // BLOCK_SIZE], tokens % BLOCK_SIZE, 1
    hidden = (tokens < start) | (tokens >= stop)
    for cache in (keys, values):
        cache[at[0][hidden], at[1][hidden]] = np.nan
    out = np.zeros((rows, columns), BFLOAT16)
    made.simulate[1, threads, None, shared_bytes](a, keys, values, block_table, out, rows, first, start, stop)
    seen = [np.where(hidden[:, None], 0, cache[at].astype(np.float32)) for cache in (keys, values)]
    scores = (a[:, 1].astype(np.float32) @ seen[0].T).astype(BFLOAT16).astype(np.float32)
    np.testing.assert_allclose(out.astype(np.float32), scores @ seen[1], rtol=2**-6, atol=0.25)


@pytest.mark.parametrize("target", [(8, 0), (9, 0)])
def test_tiles_stay_in_registers(target):
    """No call and no local memory is left."""
    made = [make_kernel("bfloat16", 64, 2, in_registers)[0] for in_registers in (True, False)]
    number = types.bfloat16
    arrays = number[:, :, ::1], number[:, :, :, ::1], number[:, :, :, ::1], types.int32[::1], number[:, ::1]
    assert not unwanted(made, *arrays, *[types.int32] * 4, compute_capability=target)
