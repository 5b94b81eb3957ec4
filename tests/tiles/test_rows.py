"""Rows of accumulators: each operation against NumPy, for accumulators of mma.sync (several row tiles, padded) and of a warp of wgmma."""

import ml_dtypes
import numpy as np
import pytest
from numba import cuda, float32, int32

from minllm.machine.numba_cuda import types
from minllm.ptx import rcp
from minllm.runtime.kernel import kernel
from minllm.tiles.rows import make_rows
from tests.tiles.compiled import unwanted

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
SHAPES = [(16, 1, None), (40, 2, 48), (64, 1, None), (8, 2, 16)]  # (columns, row_tiles, padded)


def make_kernel(columns, row_tiles, padded, fused, dtype="bfloat16"):
    """A warp loads an accumulator by rows.position and rows.column, and turns it into its softmax."""
    rows = make_rows(columns, dtype, row_tiles, padded, fused)
    width, row_count = padded or columns, 2 * row_tiles
    blocks, elements = width // 8, row_count * width // 4

    @kernel
    def softmax_kernel(x, first, last, out, sums, scale):
        lane = int32(cuda.threadIdx.x)
        acc = cuda.local.array(elements, float32)
        for row in range(row_count):
            for block in range(blocks):
                for i in range(2):
                    at = row // 2 * 4 * blocks + row % 2 * 2 + 4 * block + i
                    acc[at] = x[rows.position(row, lane), 8 * block + rows.column(lane) + i]
        for row in range(row_count):
            where = rows.position(row, lane)
            rows.mask(acc, row, rows.column(lane), first[where], last[where])
            maximum = rows.maximum(acc, row, float32(-1e30))
            total = rows.sum(rows.exponentials(acc, row, maximum, scale, float32(0)))
            rows.scale(acc, row, float32(2))
            if rows.column(lane) == 0:
                sums[where] = total
            rows.store(acc, row, rcp(total) * float32(0.5), out, where * columns, where < out.shape[0], lane)

    return softmax_kernel


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("columns, row_tiles, padded", SHAPES)
def test_a_softmax_over_rows_is_numpys(columns, row_tiles, padded, fused):
    """Rows with a first and a last column of their own; the last row does not exist in the output."""
    random, row_count, width = np.random.default_rng(columns), 16 * row_tiles, padded or columns
    x = random.standard_normal((row_count, width)).astype(np.float32)
    first, last = random.integers(0, 4, row_count), random.integers(4, columns, row_count)
    out = np.zeros((row_count - 1, columns), BFLOAT16)
    sums = np.zeros(row_count, np.float32)
    made = make_kernel(columns, row_tiles, padded, fused)
    made.simulate[1, 32](x, first.astype(np.int32), last.astype(np.int32), out, sums, np.float32(1.5))
    column = np.arange(width)
    scores = np.where((column >= first[:, None]) & (column <= last[:, None]), x, -np.inf)
    weights = np.exp2(1.5 * (scores - scores.max(axis=1, keepdims=True)))
    np.testing.assert_allclose(sums, weights.sum(axis=1), rtol=1e-5)
    expected = (weights / weights.sum(axis=1, keepdims=True))[:-1, :columns]
    np.testing.assert_allclose(out.astype(np.float32), expected, rtol=2**-7, atol=1e-6)


def test_huge_maxima_keep_the_likeliest_weight_at_1():
    """Without `fused` the difference is exact: at 1e5 the largest element weighs 1, and its sum is that of small numbers."""
    x = (1e5 + np.arange(16, dtype=np.float32)[None] + np.zeros((16, 1), np.float32)).astype(np.float32)
    whole = np.zeros(16, np.int32), np.full(16, 15, np.int32)
    out, sums = np.zeros((16, 16), BFLOAT16), np.zeros(16, np.float32)
    make_kernel(16, 1, None, False).simulate[1, 32](x, *whole, out, sums, np.float32(1.25))
    np.testing.assert_allclose(sums, np.exp2(-1.25 * np.arange(16)).sum(), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("target", [(8, 0), (9, 0)])
def test_rows_stay_in_registers(dtype, target):
    """No call and no local memory is left."""
    out = types.bfloat16 if dtype == "bfloat16" else types.float16
    arrays = types.float32[:, ::1], types.int32[::1], types.int32[::1], out[:, ::1], types.float32[::1], types.float32
    assert not unwanted([make_kernel(40, 2, 48, False, dtype)], *arrays, compute_capability=target)
