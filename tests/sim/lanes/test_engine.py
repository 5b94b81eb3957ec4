"""Which errors of the lanes go to the threads, and which the user sees."""

import numpy as np
import pytest
from numba import cuda, uint32

from minllm.errors import SimulationError
from minllm.sim import simulate
from minllm.sim.engines import launches
from minllm.sim.lanes.state import Lanes


def double(x, out):
    i = cuda.grid(1)
    out[i] = x[i] + x[i]


def test_an_error_of_the_lanes_is_not_silent(monkeypatch):
    def load(lanes, array, *index):
        raise KeyError("a table")

    monkeypatch.setattr(Lanes, "load", load)
    x, out = np.arange(32.0), np.zeros(32)
    with pytest.raises(SimulationError, match=r"(?s)lanes in double,.*KeyError: 'a table'.*engine=\"threads\"") as caught:
        simulate(double, 1, 32, x, out, engine="lanes")
    assert "MINLLM_SIM_ENGINE=threads" in str(caught.value)
    assert (out == 2 * x).all()
    launches.clear()  # so that the check of all tests does not see it
    simulate(double, 1, 32, x, out, engine="threads")


def test_the_verdict_of_the_threads_stands(monkeypatch):
    monkeypatch.setattr(Lanes, "load", lambda lanes, array, *index: array.nothing)
    with pytest.raises(SimulationError, match="out of bounds"):
        simulate(double, 2, 32, np.arange(32.0), np.zeros(32), engine="lanes")
    launches.clear()


def compact(x, out):
    i = cuda.threadIdx.x
    chosen = uint32(cuda.ballot_sync(0xFFFFFFFF, x[i] > 0))  # negative as the int32 that ballot_sync gives
    if x[i] > 0:
        out[cuda.popc(chosen & ((uint32(1) << uint32(i)) - uint32(1)))] = i


def test_a_count_of_bits_is_an_index_that_nothing_overflows_into():
    x, out = np.float32([(i % 3 > 0) for i in range(32)]), np.full(32, -1)
    simulate(compact, 1, 32, x, out, detect=True, engine="lanes")
    assert x[31] > 0 and launches == {("compact", None): 1}
    assert out.tolist() == [i for i in range(32) if x[i] > 0] + [-1] * int((x == 0).sum())
