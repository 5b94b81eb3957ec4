"""Functions inside of a kernel, which Numba inlines, and sums of tuples have Numba's types."""

import numba
import numpy as np
import pytest
from numba import cuda

from minllm.errors import SimulationError
from minllm.sim import simulate


def cases(x, i, out):
    scale = lambda v: v * 0.1  # noqa: E731
    out[0] = scale(x[i])
    factor = x[i]

    def power(v, exponent=2):
        result = v
        for _ in range(exponent):
            result *= factor
        if i > 5:
            return result / 3
        return result

    out[1] = power(x[1]) * power(x[2], 3) * factor
    twice = lambda v: scale(v) + factor  # noqa: E731
    out[2] = twice(x[3]) * x[4]
    out[3] = sum((x[i], x[1])) * x[2]
    out[4] = sum((i, x[i], 2))
    out[5] = sum((i, 1, 2)) * x[i]


@pytest.mark.parametrize("engine", ["lanes", "threads"])
def test_the_types_are_those_of_numba(engine):
    function, compiled = cuda.jit(device=True)(cases), numba.njit(cases)

    @cuda.jit(debug=True, opt=False)  # without contraction
    def kernel(x, out):
        i = cuda.grid(1)
        function(x, i, out[i])

    x, found, expected = np.linspace(0.1, 7.7, 8, dtype=np.float32), *np.zeros((2, 8, 6))
    simulate(kernel, 1, 8, x, found, engine=engine)
    for i, row in enumerate(expected):
        compiled(x, i, row)
    assert (found == expected).all()


def test_calls_with_arguments_of_different_types_are_refused():
    def kernel(x, out):
        square = lambda v: v * v * 2.5  # noqa: E731
        out[0] = square(x[0]) + square(cuda.grid(1))

    with pytest.raises(
        SimulationError, match=r"with arguments of different types.* outside, with @cuda.jit\(device=True\) \(.*:\d+ in kernel"
    ):
        simulate(kernel, 1, 1, np.ones(1, np.float32), np.zeros(1))


def test_a_function_that_changes_variables_of_the_kernel_runs():
    def kernel(out):
        number = 1.5

        def change():
            nonlocal number
            number = 2.5

        change()
        out[0] = number

    simulate(kernel, 1, 1, out := np.zeros(1))
    assert out[0] == 2.5
