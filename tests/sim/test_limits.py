"""Launches and arrays that a GPU, or Numba's compiler, refuses."""

import numba
import numpy as np
import pytest
from numba import cuda, float32

from minllm.errors import SimulationError
from minllm.runtime.kernel import kernel
from minllm.sim import simulate

SIZE, SHAPE = 8, (2, 4)


@pytest.mark.parametrize(
    "grid, block, match",
    [
        (1, 2048, r"a block of \(2048, 1, 1\) threads; a GPU takes 1024 in all"),
        (1, (1, 1, 128), "and 64 along z"),
        ((1, 70_000), 1, "a GPU takes 65535 along y and along z"),
        (2**31, 1, "and along z, 2147483647 along x"),
        (20 // 32, 32, r"a grid of \(0, 1, 1\) blocks of \(32, 1, 1\) threads; a GPU takes at least 1 along each axis"),
        (1, (32, 0), r"\(32, 0, 1\) threads; a GPU takes at least 1"),
        (-1, 32, r"a grid of \(-1, 1, 1\) blocks"),
        (40 / 32, 32, r"1.25 is not the size of a grid or of a block: give one to three integers, such as \(n \+ 31\) // 32"),
        (1, (4.0, 2), r"\(4.0, 2\) is not the size"),
        ((1, 1, 1, 1), 1, r"\(1, 1, 1, 1\) is not the size"),
    ],
)
def test_launches_beyond_the_limits_are_refused(grid, block, match):
    def kernel(out):
        out[0] = 1

    with pytest.raises(SimulationError, match=match):
        simulate(kernel, grid, block, np.zeros(1))


@pytest.mark.parametrize("size", [-4, 227 * 1024 + 4, 10**9, 33.5, None])
def test_dynamic_shared_memory_that_no_block_has_is_refused(size):
    def kernel(out):
        tile = cuda.shared.array(0, float32)
        out[0] = tile.size

    out = np.zeros(1)
    with pytest.raises(SimulationError, match=f"^{size} bytes of dynamic shared memory; a GPU takes an integer from 0 to 232448$"):
        simulate(kernel, 1, 1, out, shared_bytes=size)
    simulate(kernel, 1, 1, out, shared_bytes=227 * 1024)
    assert out[0] == 227 * 256


@pytest.mark.parametrize("bounds", [64, (64, 2)])
def test_a_block_beyond_the_launch_bounds_is_refused(bounds):
    def one(out):
        out[0] = 1

    for bounded in (cuda.jit(launch_bounds=bounds)(one), kernel(launch_bounds=bounds)(one)):
        simulate(bounded, 1, (32, 2), np.zeros(1))
        with pytest.raises(SimulationError, match="a block of 96 threads; the kernel's launch_bounds allow 64"):
            simulate(bounded, 1, (32, 3), np.zeros(1))


def test_static_shared_memory_beyond_48_kib_is_refused():
    def kernel(out):
        tile = cuda.shared.array(20_480, float32)
        tile[0] = 1

    match = r"81920 bytes of static shared arrays; a block has at most 49152.*test_limits.py:\d+ in kernel"
    with pytest.raises(SimulationError, match=match):
        simulate(kernel, 1, 1, np.zeros(1))


def of_argument(out, n):
    cuda.shared.array(n, float32)


def of_an_arrays_shape(out, n):
    cuda.local.array((SIZE, out.shape[0]), float32)


def of_the_block(out, n):
    cuda.shared.array(cuda.blockDim.x, float32)


def of_two_values(out, n):
    size = 4
    if n > 2:
        size = 5
    cuda.shared.array(size, float32)


def with_arithmetic(out, n):
    cuda.shared.array(2 * SIZE, float32)


@pytest.mark.parametrize("kernel", [of_argument, of_an_arrays_shape, of_the_block, of_two_values, with_arithmetic])
def test_shapes_that_numba_does_not_know_when_it_compiles_are_refused(kernel):
    match = r"the shape of a shared or local array is (known only at run time|computed).*test_limits.py:\d+ in \w+\)"
    for _ in range(2):  # the second launch as the first
        with pytest.raises(SimulationError, match=match):
            simulate(kernel, 1, 1, np.zeros(1, np.float32), 4)


def test_shapes_of_constants_are_taken():
    @cuda.jit(device=True)
    def first_of(size, out):
        tile = cuda.local.array(size, float32)
        tile[0] = 3
        out[0] = tile[0]

    def kernel(out):
        tile, matrix, axes = cuda.shared.array(SIZE, float32), cuda.shared.array(SHAPE, float32), cuda.local.array(out.ndim, float32)
        tile[0] = matrix[0, 0] = axes[0] = 1
        first_of(4, out)

    out = np.zeros(1, np.float32)
    simulate(kernel, 1, 1, out)
    assert out[0] == 3


def test_global_arrays_and_arrays_in_tuples_are_checked_and_named():
    table, tables = np.arange(4.0), (np.arange(4.0), np.arange(3.0))

    def of_closure(out, i):
        out[0] = table[i]

    def of_closures_tuple(out, i):
        out[0] = tables[1][i]

    def of_argument(out, i, pair):
        out[0] = pair[1][i]

    kernels = (of_closure, "table", ()), (of_closures_tuple, r"tables\[1\]", ()), (of_argument, r"pair\[1\]", (tables,))
    for index in (-5, 4):
        for found, name, more in kernels:
            with pytest.raises(SimulationError, match=rf"\[{index}\] is out of bounds for the (constant|global) array {name} of shape"):
                simulate(found, 1, 1, np.zeros(1), index, *more)


@pytest.mark.parametrize(
    "argument, what",
    [
        (np.zeros(3, ">f4"), "an array of >f4"),
        (np.zeros(3, np.longdouble), f"an array of {np.dtype(np.longdouble)}"),
        (np.zeros(3, object), "an array of Python objects"),
        (np.ma.masked_array(np.zeros(3), mask=[1, 0, 0]), "a MaskedArray"),
        (2**64, "18446744073709551616"),
        ([1.0], "a list"),
    ],
)
def test_arguments_without_a_type_are_refused(argument, what):
    def kernel(x, out):
        out[0] = 1

    with pytest.raises(SimulationError, match=f"argument x of kernel is {what}, which no kernel takes"):
        simulate(kernel, 1, 1, argument, np.zeros(1))
    if what not in ("a list", "an array of Python objects"):  # of these Numba has types for a CPU alone
        with pytest.raises((numba.core.errors.NumbaError, ValueError)):
            numba.typeof(argument)
