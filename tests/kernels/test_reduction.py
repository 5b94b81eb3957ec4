"""Sums over warps and blocks: every thread gets the sum of all."""

import numpy as np
import pytest
from numba import cuda, float32

from minllm.kernels.reduction import block_sum
from minllm.runtime.kernel import kernel, launch
from minllm.tiles.warp import warp_sum


@kernel
def sum_twice_kernel(x, by_warp, by_block, squares):
    """Every thread writes the sums that it was given."""
    partials, more_partials = cuda.shared.array(32, float32), cuda.shared.array(32, float32)
    i = cuda.threadIdx.x
    by_warp[i] = warp_sum(x[i])
    by_block[i] = block_sum(x[i], partials)
    squares[i] = block_sum(x[i] * x[i], more_partials)


@pytest.mark.parametrize("threads", [32, 64, 96, 1024])
def test_every_thread_has_the_sum(threads, device):
    x = np.arange(1, threads + 1, dtype=np.float32) % 97  # small integers: every order of adding gives the same
    results = [device.array(np.full(threads, np.nan, np.float32)) for _ in range(3)]
    launch(sum_twice_kernel, 1, threads, (device.array(x), *results))
    by_warp, by_block, squares = map(device.host, results)
    np.testing.assert_array_equal(by_warp, np.repeat(x.reshape(-1, 32).sum(1), 32))
    np.testing.assert_array_equal(by_block, np.full(threads, x.sum()))
    np.testing.assert_array_equal(squares, np.full(threads, (x * x).sum()))
