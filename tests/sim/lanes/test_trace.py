"""Traces made in lanes are those that the threads make, where threads part, loops differ in length and functions are called twice."""

import math
from math import sqrt

import ml_dtypes
import numpy as np
from numba import cuda, float32, int32

from minllm import ptx
from minllm.sim.lanes import trace
from tests.sim.lanes.engines import compare

BLOCK = 48  # a warp and a half


def traced(kernel, *arguments, grid=3, block=BLOCK, **options):
    """Run a kernel in both engines, which must agree; the lanes must not leave it to the threads."""
    assert compare(kernel, grid, block, *arguments, traced=True, detect=False, **options) is None


@cuda.jit(device=True)
def gathered(x, i):
    """x[i], and its neighbour if there is one, reached by a loop of the caller's length."""
    total = float32(0)
    while i < x.shape[0] and x[i] > float32(0):
        total += x[i] * float32(0.5)
        i += 17
    return total


def test_loops_of_different_lengths_and_functions_that_are_called_twice():
    def kernel(x, y, out):
        i = cuda.grid(1)
        total = gathered(x, i) - gathered(y, 2 * i) if i % 3 else gathered(x, i % 7)
        for array in (x, y):
            total += array[i % 11] / float32(3)
            if array[i] < float32(0.25):
                continue
            total -= array[i + 1]
        out[i] += total

    x, y = np.random.default_rng(0).random((2, 3 * BLOCK + 200), np.float32)
    x[::29] = y[::31] = 0
    traced(kernel, x, y, np.zeros(3 * BLOCK, np.float32))


def test_operations_of_the_lanes_that_need_them():
    def kernel(x, out, sums, factor):
        i = cuda.grid(1)
        a, b = x[i], x[i + 1]
        if a > float32(0.3) and a * b > float32(0.2) or b - a < factor * factor:
            a = a**3 + math.sqrt(abs(b)) if i % 2 else cuda.fma(a, b, factor) if i % 4 else b / a
        if float32(0.1) < a * factor < b + float32(1):
            a += ptx.ex2(a) + max(a, b)
        a -= (a % b) * (a // b) + sqrt(a) * round(a) - a**b
        out[i] = a * a + b * b - math.exp(a)
        cuda.atomic.add(sums, i, a)
        cuda.atomic.max(sums, 3 * BLOCK, b)

    x, out = np.random.default_rng(1).random(3 * BLOCK + 1, np.float32), np.zeros(3 * BLOCK, np.float32)
    traced(kernel, x, out, np.zeros_like(x), np.float32(0.7))


def test_shared_memory_of_parts_of_warps_and_barriers_of_blocks():
    def kernel(x, out):
        tile, other = cuda.shared.array((8, 9), float32), cuda.shared.array(BLOCK, int32)
        i = cuda.threadIdx.x
        other[i] = i * 3 % BLOCK
        if i < 36:
            tile[i % 8, i // 8] = x[i]
        cuda.syncthreads()
        if cuda.blockIdx.x == 1:
            cuda.syncthreads()
            cuda.atomic.add(other, i % 5, 1)
        if i < 32:
            total = cuda.shfl_xor_sync(0xFFFFFFFF, tile[i % 4, i % 3], 1)
            if cuda.any_sync(0xFFFFFFFF, i == 3):
                total += tile[i // 8, i % 4]
            out[cuda.blockIdx.x, other[i]] = total
        cuda.syncthreads()

    traced(kernel, np.ones(BLOCK, np.float32), np.zeros((3, 1 << 10), np.float32))


def test_words_of_several_bytes_in_views_with_gaps():
    def kernel(x, rows, out):
        i = cuda.grid(1)
        if i < 100:
            low, high = ptx.unpack_bf16x2(ptx.load_32(x, 2 * i))
            one, two, three, four = ptx.load_128(x, 8 * (i % 30))
            out[i] = low + high * rows[i % 4, i % 5]
            rows[i % 4, 5] = float32(one & two & three & four & 7)

    x = np.arange(240).astype(ml_dtypes.bfloat16)
    traced(kernel, x, np.ones((4, 12), np.float32)[:, ::2], np.zeros(100, np.float32))


def test_many_accesses_are_counted_while_the_launch_runs(monkeypatch):
    monkeypatch.setattr(trace, "MOST_ACCESSES", 500)

    def kernel(x, out):
        i = cuda.threadIdx.x
        total = x[BLOCK - i] if i >= 40 else float32(0)
        for k in range(40):
            total += x[i + k]
            if k < i % 3:
                total -= x[k]
        out[i] = total

    traced(kernel, np.ones(2 * BLOCK, np.float32), np.zeros(BLOCK, np.float32), grid=1)
    monkeypatch.setattr(trace, "MOST_ACCESSES", 100)
    why = compare(kernel, 1, BLOCK, np.ones(2 * BLOCK, np.float32), np.zeros(BLOCK, np.float32), traced=True, detect=False)
    assert why == "too many accesses by parts of warps to be traced"
