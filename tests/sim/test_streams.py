"""What orders the works of streams and the host; planted_bugs.py has programs in which the order is missing."""

import numpy as np
import pytest
from numba import cuda

from minllm.errors import SimulationError
from minllm.sim.numba_launches import simulated_launches


@cuda.jit
def double(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= 2


@cuda.jit
def count(counter):
    cuda.atomic.add(counter, 0, 1)


@cuda.jit
def copy(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i]


@pytest.fixture(autouse=True, params=["lanes", "threads"])
def launches_are_simulated(request, monkeypatch):
    monkeypatch.setenv("MINLLM_SIM_ENGINE", request.param)
    with simulated_launches():
        yield


def by_event(first, second):
    done = cuda.event()
    done.record(first)
    done.wait(second)


def by_event_of_the_host(first, second):
    done = cuda.event()
    done.record(first)
    done.synchronize()


def by_query(first, second):
    done = cuda.event()
    done.record(first)
    while not done.query():
        pass


def by_the_default_stream(first, second):
    double[1, 1](cuda.to_device(np.ones(1, np.float32)))


def by_a_third_stream(first, second):
    third = cuda.stream()
    by_event(first, third)
    by_event(third, second)


def by_the_context(first, second):
    cuda.current_context().synchronize()


def by_waiting(first, second):
    first.synchronize()


@pytest.mark.parametrize(
    "order", [by_event, by_event_of_the_host, by_query, by_the_default_stream, by_a_third_stream, by_the_context, by_waiting]
)
def test_two_streams_are_ordered(order):
    first, second = cuda.stream(), cuda.stream()
    x, out = cuda.to_device(np.ones(8, np.float32)), cuda.device_array(8, np.float32)
    double[1, 8, first](x)
    order(first, second)
    copy[1, 8, second](x, out)
    assert out.copy_to_host().tolist() == [2] * 8


def test_streams_may_share_what_both_read_and_atomics():
    x, counter = cuda.to_device(np.ones(8, np.float32)), cuda.to_device(np.zeros(1, np.int32))
    for _ in range(2):
        stream = cuda.stream()
        copy[1, 8, stream](x, cuda.device_array(8, np.float32))
        count[1, 8, stream](counter)
    assert counter.copy_to_host()[0] == 16


def test_memory_that_is_not_pinned_makes_the_host_wait():
    stream, x = cuda.stream(), np.ones(8, np.float32)
    there = cuda.to_device(x, stream=stream)
    x[0] = 3
    double[1, 8, stream](there)
    assert there.copy_to_host(stream=stream)[1] == 2
    double[1, 8, stream](x)
    double[1, 8, cuda.stream()](x)
    assert x.tolist() == [12] + [4] * 7


def test_the_host_uses_pinned_memory_of_other_copies():
    stream, memory = cuda.stream(), cuda.pinned_array((2, 8), np.float32)
    memory[:] = [[1] * 8, [2] * 8]
    there = cuda.to_device(memory[0], stream=stream)
    there.copy_to_host(memory[0], stream=stream)
    assert memory[1, 3] == 2 and (memory[1] + 1).sum() == 24 and type(memory[1] + 1) is np.ndarray
    memory[1] = 7
    seen = []
    stream.add_callback(lambda *_: seen.append(memory[0].sum()))
    with stream.auto_synchronize():
        double[1, 8, stream](there)
    assert seen == [8] and memory.tolist() == [[1] * 8, [7] * 8] and np.array_equal(memory[0], np.ones(8)) and memory.max() == 7


def test_a_waiver_allows_a_race_between_streams():
    x = cuda.to_device(np.ones(8, np.float32))
    double[1, 8, cuda.stream()](x)
    double[1, 8, cuda.stream()](x)  # allow-race: only the time of these launches is measured
    with pytest.raises(SimulationError, match=r"kernel double on stream 3 writes element \[0\] of x, which kernel double on stream 1"):
        double[1, 8, cuda.stream()](x)


@pytest.mark.parametrize(
    "use", [lambda x: x.copy(), lambda x: x[2:].tolist(), lambda x: np.concatenate([x, x]), lambda x: x + 1, lambda x: float(x[1])]
)
def test_the_host_reads_pinned_memory_too_early(use):
    stream, memory = cuda.stream(), cuda.pinned_array(4, np.float32)
    cuda.to_device(np.ones(4, np.float32), stream=stream).copy_to_host(memory, stream=stream)
    with pytest.raises(SimulationError, match=r"host and device: the host reads element \[[0-2]\] .* copy_to_host on stream 1"):
        use(memory)
    stream.synchronize()
    use(memory)
