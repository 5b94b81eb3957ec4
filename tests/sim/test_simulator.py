"""The simulator runs kernels as a GPU would, and says so when a GPU would go wrong."""

import math

import numpy as np
import pytest
from numba import cuda, float32, int32, uint32

from minllm.errors import KernelArgumentError, SimulationError
from minllm.runtime.kernel import kernel, launch
from minllm.sim import simulate

BLOCK = 64
WARPS = BLOCK // 32


@cuda.jit(device=True)
def squared(x):
    return x * x


@kernel
def sum_of_squares_kernel(x, out):
    """One block a row: warp shuffles, then shared memory."""
    # x [rows, columns], out [rows]
    partial = cuda.shared.array(WARPS, float32)
    total = float32(0)
    i = cuda.threadIdx.x
    while i < x.shape[1]:
        total += squared(float32(x[cuda.blockIdx.x, i]))
        i += BLOCK
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)
    if cuda.threadIdx.x % 32 == 0:
        partial[cuda.threadIdx.x // 32] = total
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = math.sqrt(partial[0] + partial[1])


@pytest.mark.parametrize("columns", [1, 31, 63, 64, 65, 127])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_reduction_with_shuffles_and_shared_memory(columns, dtype):
    x = np.random.default_rng(columns).standard_normal((3, columns)).astype(dtype)
    out = np.full(3, np.nan, np.float32)
    launch(sum_of_squares_kernel, 3, BLOCK, (x, out))
    expected = np.sqrt((x.astype(np.float64) ** 2).sum(1))
    np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_plain_functions_and_numba_dispatchers_run_too():
    def double(x):
        i = cuda.grid(1)
        if i < x.size:
            x[i] = x[i] * 2

    for function in (double, cuda.jit(double)):
        x = np.arange(5, dtype=np.int32)
        simulate(function, 2, 3, x)
        assert x.tolist() == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("index", [-5, 4])
def test_out_of_bounds_names_the_line_the_block_and_the_thread(index):
    def reach(x, out, index):
        out[0] = x[index]

    with pytest.raises(SimulationError, match=r"out of bounds.*test_simulator.py:\d+ in reach, block .*thread"):
        simulate(reach, 1, 1, np.zeros(4, np.float32), np.zeros(1, np.float32), index)


def test_a_read_of_shared_memory_nobody_wrote_gives_nan():
    def read(out):
        memory = cuda.shared.array(4, float32)
        out[0] = memory[2]

    out = np.zeros(1, np.float32)
    simulate(read, 1, 1, out, detect=False)
    assert np.isnan(out[0])


def test_half_a_warp_at_a_shuffle_is_reported():
    def diverge(out):
        value = cuda.threadIdx.x
        if cuda.threadIdx.x < 16:
            value = cuda.shfl_xor_sync(0xFFFFFFFF, value, 1)
        out[cuda.threadIdx.x] = value

    with pytest.raises(SimulationError, match="16 threads .* wait at shfl_xor"):
        simulate(diverge, 1, 32, np.zeros(32, np.int32))


def test_a_barrier_that_a_warp_does_not_reach_is_reported():
    def skip(out):
        if cuda.threadIdx.x < 32:
            cuda.syncthreads()
            cuda.shfl_sync(0xFFFFFFFF, 1, 0)
        else:
            cuda.shfl_sync(0x1, 1, 0)

    with pytest.raises(SimulationError, match="leaves it out"):
        simulate(skip, 1, 64, np.zeros(1, np.int32))


def test_votes_atomics_and_barrier_counts():
    def vote(out, counter):
        odd = cuda.threadIdx.x % 2 == 1
        ballot = cuda.ballot_sync(0xFFFFFFFF, odd)
        count = cuda.syncthreads_count(cuda.threadIdx.x % 2)
        cuda.atomic.add(counter, 0, 1)
        if cuda.threadIdx.x == 33:
            out[0] = uint32(ballot)
            out[1] = count
            out[2] = cuda.popc(ballot)

    out, counter = np.zeros(3, np.uint32), np.zeros(1, np.int32)
    simulate(vote, 1, 64, out, counter)
    assert out.tolist() == [0xAAAAAAAA, 32, 16] and counter[0] == 64


def test_integer_casts_wrap_as_on_the_gpu():
    def wrap(out):
        out[0] = int32(2**31)
        out[1] = int32(uint32(-1))

    out = np.zeros(2, np.int32)
    simulate(wrap, 1, 1, out)
    assert out.tolist() == [-(2**31), -1]


def test_dynamic_shared_memory_has_the_size_of_the_launch():
    @kernel
    def fill(out):
        memory = cuda.shared.array(0, float32, 128)
        memory[cuda.threadIdx.x] = float32(cuda.threadIdx.x)
        cuda.syncthreads()
        out[cuda.threadIdx.x] = memory[cuda.blockDim.x - 1 - cuda.threadIdx.x]

    out = np.zeros(8, np.float32)
    launch(fill, 1, 8, (out,), shared_bytes=32)
    assert out.tolist() == list(range(7, -1, -1))
    with pytest.raises(SimulationError, match="out of bounds"):
        launch(fill, 1, 8, (out,), shared_bytes=28)


def test_an_empty_grid_launches_nothing_and_mixed_arrays_are_refused():
    out = np.zeros(2, np.float32)
    launch(sum_of_squares_kernel, 0, BLOCK, (np.zeros((0, 3), np.float32), out))
    with pytest.raises(KernelArgumentError, match="one to three sizes"):
        launch(sum_of_squares_kernel, (1, 1, 1, 1), BLOCK, (out, out))
    with pytest.raises(KernelArgumentError, match="the grid is 1.5; .* which are integers"):
        launch(sum_of_squares_kernel, 1.5, BLOCK, (out, out))
