"""Branches, loops, returns and calls in lanes: what each thread does is what it does by itself."""

import math
from contextvars import ContextVar

import numpy as np
import pytest
from numba import cuda, float32, int32

from minllm.errors import SimulationError
from minllm.sim import output, simulate, unwritten, using_engine
from minllm.sim.engines import launches
from tests.sim.lanes.engines import compare

COUNT = 131  # threads that have an element, in blocks of 48


def in_lanes(kernel, *arguments, grid=3, block=48, **options):
    """Compare the engines under detectors and without them, and check that the lanes have run the launch."""
    for detect in (True, False):
        assert compare(kernel, grid, block, *arguments, detect=detect, **options) is None


def numbers():
    return np.random.default_rng(0).integers(0, 40, COUNT), np.zeros((4, COUNT), np.int64)


def test_early_returns():
    def kernel(x, out):
        i = cuda.grid(1)
        if i >= x.size:
            return
        out[0, i] = 1
        if x[i] % 3 == 0:
            out[1, i] = 2
            if x[i] % 2 == 0:
                return
            out[2, i] = 3
        elif x[i] > 20:
            return
        out[3, i] = x[i]

    in_lanes(kernel, *numbers())


def test_loops_whose_iterations_differ():
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            total = 0
            for k in range(x[i]):
                total += k * k
            out[0, i] = total
            n, steps = x[i], 0
            while n != 1 and steps < 50:
                n = n // 2 if n % 2 == 0 else 3 * n + 1
                steps += 1
            out[1, i] = steps
            for k in range(x[i], -5, -3):
                out[2, i] += k
            last = -1
            for k in range(i, 300, 48):
                last = k
            out[3, i] = last

    in_lanes(kernel, *numbers())


def test_break_continue_and_return_inside_loops():
    def kernel(x, out):
        i = cuda.grid(1)
        if i >= x.size:
            return
        found = -1
        for k in range(30):
            if k % 4 == 1:
                continue
            inner = 0
            while True:
                inner += 1
                if inner > x[i] % 5:
                    break
                if inner == 3:
                    continue
                out[1, i] += inner
            if k * k > x[i]:
                found = k
                break
            if x[i] == 39 and k == 2:
                out[2, i] = 7
                return
            out[2, i] += k
        out[0, i] = found
        out[3, i] = inner

    in_lanes(kernel, *numbers())


def test_variables_keep_their_values_in_lanes_that_skip_an_assignment():
    def kernel(x, out):
        i = cuda.grid(1)
        a, b = 5, x[min(i, x.size - 1)]
        if b > 10:
            a = b
            if b > 20:
                a, b = b - 1, a + 2
            else:
                b = a * 2 + 1
        elif b > 5:
            b = -b
        for k in range(b):
            if k > a:
                a += k
        if i < x.size:
            out[0, i] = a
            out[1, i] = b

    in_lanes(kernel, *numbers())


@cuda.jit(device=True)
def classify(value, limit):
    """A function with several returns."""
    if value < limit:
        for k in range(value):
            if k * k >= value:
                return k
        return -1
    if value == limit:
        return 100
    return value - limit


@cuda.jit(device=True)
def both(value):
    return value // 2, value % 2


def test_device_functions():
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[0, i] = classify(x[i], 17)
            half, rest = both(x[i])
            out[1, i], out[2, i] = rest, half
            if x[i] > 11:
                out[3, i] = classify(half, 9) + classify(rest, 1)

    in_lanes(kernel, *numbers())


def test_conditions_are_evaluated_by_the_lanes_that_need_them():
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size and x[i] > 3 and 100 // x[i] > 5:
            out[0, i] = 1
        if i >= x.size or x[i] < 20:
            if i < x.size:
                out[1, i] = 2
        value = x[i] if i < x.size else -1
        if i < x.size:
            out[2, i] = value
            out[3, i] = 1 if 5 < x[i] <= 30 else 0

    in_lanes(kernel, *numbers())


def test_shared_memory_and_barriers():
    def kernel(x, out):
        tile = cuda.shared.array(48, float32)
        i, t = cuda.grid(1), cuda.threadIdx.x
        tile[t] = float32(x[i]) if i < x.size else float32(0)
        cuda.syncthreads()
        step = 24
        while step > 0:
            if t < step and step != 3 or t == 0 and step == 3:
                tile[t] += tile[t + step]
                if step == 3:
                    tile[t] += tile[t + 1] + tile[t + 2] - tile[t + step]
            cuda.syncthreads()
            step //= 2
            if step == 1:
                step = 0
        if t == 0:
            out[0, cuda.blockIdx.x] = int32(tile[0])

    in_lanes(kernel, *numbers())


def test_local_arrays_and_parts_of_arrays():
    def kernel(x, out):
        i = cuda.grid(1)
        counts = cuda.local.array((2, 5), int32)
        for k in range(10):
            counts[k // 5, k % 5] = 0
        for k in range(min(i, x.size)):
            counts[k % 2, x[k] % 5] += 1
        row = counts[i % 2]
        if i < x.size:
            column = out[:, i]
            column[0] = row[x[i] % 5]
            column[3] = row[0]

    in_lanes(kernel, *numbers())


def test_warp_functions():
    def kernel(x, out):
        i = cuda.grid(1)
        value = x[i]
        total = value
        for step in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(0xFFFFFFFF, total, step)
        out[0, i] = total
        out[1, i] = cuda.ballot_sync(0xFFFFFFFF, value > 20)
        out[2, i] = cuda.shfl_sync(0xFFFFFFFF, value, value % 32) + cuda.shfl_up_sync(0xFFFFFFFF, value, 3)
        if cuda.any_sync(0xFFFFFFFF, value == 39):
            cuda.syncwarp()
            out[3, i] = cuda.syncthreads_count(0) if False else 1

    x = np.random.default_rng(0).integers(0, 40, 128)
    in_lanes(kernel, x, np.zeros((4, 128), np.int64), grid=2, block=64)


def test_atomics_give_each_thread_its_old_value():
    def kernel(x, out, total):
        i = cuda.grid(1)
        if i < x.size:
            out[0, i] = cuda.atomic.add(total, 0, x[i])
            cuda.atomic.max(total, 1, x[i])

    in_lanes(kernel, *numbers(), np.zeros(2, np.int64))


def test_blocks_that_see_each_other_run_one_after_the_other():
    def kernel(x, total):
        total[0] = total[0] + x[cuda.blockIdx.x]
        x[(cuda.blockIdx.x + 1) % x.size] += 1

    assert compare(kernel, 9, 1, np.arange(9), np.zeros(1, np.int64), detect=False) is None


def test_arrays_that_detectors_watch():
    def kernel(x, scratch, out):
        i = cuda.grid(1)
        if i < x.size:
            scratch[i] = 2.0 * x[i]
            out[i] = scratch[i]

    x = np.arange(COUNT, dtype=np.float32)
    in_lanes(kernel, x, unwritten(COUNT + 5, np.float32), output(COUNT, np.float32))
    why = compare(kernel, 2, 48, x, unwritten(COUNT, np.float32), output(COUNT, np.float32), detect=True)
    assert why.startswith("a possible fault: no thread has written")


def test_undone_launches_leave_arrays_as_they_were():
    def kernel(x, out):
        i = cuda.grid(1)
        out[0, i] = x[i]
        out[1, i] = x[i + 1]

    x, out = np.arange(COUNT), np.zeros((4, COUNT), np.int64)
    assert compare(kernel, 1, COUNT, x, out, detect=False) == "a possible fault: an index is out of bounds"


def test_a_loop_that_cannot_end_is_left_to_the_threads(monkeypatch):
    monkeypatch.setattr("minllm.sim.lanes.masks.MOST_TURNS", 100)

    def kernel(out):
        k = 0
        while k < 1000:
            k += 1
        out[cuda.threadIdx.x] = k

    assert compare(kernel, 1, 8, np.zeros(8, np.int64)) == "a loop of more than 65,536 iterations"


def test_the_engine_of_the_context_and_of_the_environment(monkeypatch):
    def kernel(out):
        out[cuda.threadIdx.x] = math.sqrt(2.0)

    def ran():
        launches.clear()
        simulate(kernel, 1, 8, np.zeros(8))
        return list(launches.values()) == [1]

    monkeypatch.setattr("minllm.sim.engines._engine", ContextVar("engine", default=None))
    with using_engine("threads"):
        assert not ran()
        with using_engine("lanes"):
            assert ran()
    monkeypatch.setenv("MINLLM_SIM_ENGINE", "lanes")
    assert ran()
    monkeypatch.setenv("MINLLM_SIM_ENGINE", "fibres")
    with pytest.raises(SimulationError, match="engine 'fibres'; the simulator has 'lanes' and 'threads'"):
        ran()


def test_a_variable_that_a_break_leaves_with_another_type():
    def kernel(x, out):
        i = cuda.grid(1)
        v = x[i]
        for _ in range(3):
            if i > 100:
                v = 0.5
                break
        out[i] = v

    x = np.full(8, 2**53 + 1)
    compare(kernel, 1, 8, x, out := np.zeros(8, np.int64))
    simulate(kernel, 1, 8, x, out)
    assert set(out) == {2**53}  # a float64 also in threads that do not break
