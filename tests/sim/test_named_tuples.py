"""NamedTuples of device functions and of values, in which a tile's operations and a pipeline's state travel through a kernel."""

from typing import NamedTuple

import numpy as np
from numba import cuda, float32, int32

from minllm.machine.numba_cuda import types
from minllm.ptx import ex2
from minllm.runtime.cache_key import cache_key
from minllm.sim import simulate


class Operations(NamedTuple):
    scale: object
    power: object


class State(NamedTuple):
    stage: int
    parity: int


def make_kernel(factor):
    @cuda.jit(device=True)
    def scale(x):
        return x * float32(factor)

    @cuda.jit(device=True)
    def advance(state):
        last = state.stage == 2
        return State(int32(0 if last else state.stage + 1), int32(state.parity ^ (1 if last else 0)))

    operations = Operations(scale, ex2)

    def kernel(x, out, steps):
        i = cuda.grid(1)
        state = State(int32(0), int32(0))
        for _ in range(steps):
            state = advance(state)
        out[i] = operations.scale(operations.power(x[i])) + 10 * state.stage + 100 * state.parity

    return kernel


def test_operations_and_states_in_tuples_are_simulated():
    x, out = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    simulate(make_kernel(2.0), 1, 4, x, out, 4)
    assert (out == 2 * 2**x + 10 * 1 + 100 * 1).all()


def test_what_is_in_a_tuple_decides_the_key_of_the_machine_code():
    """A kernel whose key cannot be described is compiled anew every time."""
    arguments = (types.float32[::1], types.float32[::1], types.int32)

    def key(factor):
        kernel = make_kernel(factor)
        kernel.__module__ = "minllm.made_up"
        return cache_key(kernel, arguments, (9, 0), {})

    assert key(2.0) is not None
    assert key(2.0) == key(2.0) != key(3.0)
