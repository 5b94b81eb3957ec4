"""Threads that have returned, that spin, and lanes that a shuffle must not read."""

import threading

import numpy as np
import pytest
from numba import cuda, float32, int32

from minllm.errors import SimulationError
from minllm.sim import simulate

FULL = 0xFFFFFFFF


def test_lanes_that_have_exited_need_not_take_part():
    def kernel(x, out):
        i = cuda.threadIdx.x
        if i >= 20:
            return
        value = x[i]
        for distance in (16, 8, 4, 2, 1):
            other = cuda.shfl_down_sync(FULL, value, distance)
            if i + distance < 20:
                value += other
        cuda.syncwarp()
        if i == 0:
            out[0] = value

    out = np.zeros(1, np.float32)
    simulate(kernel, 1, 32, np.arange(32, dtype=np.float32), out, detect=True)
    assert out[0] == sum(range(20))


def test_a_lane_that_went_past_a_shuffle_has_not_exited_before_it():
    def kernel(out):
        value = cuda.threadIdx.x
        if cuda.threadIdx.x < 16:
            value = cuda.shfl_down_sync(FULL, value, 1)
        out[cuda.threadIdx.x] = value

    with pytest.raises(SimulationError, match="16 threads .* wait at shfl_down"):
        simulate(kernel, 1, 32, np.zeros(32, np.int32))


@pytest.mark.parametrize("source, allowed", [(3, True), (20, False)])
def test_a_shuffle_from_a_lane_outside_of_the_mask(source, allowed):
    def kernel(out, source):
        i = cuda.threadIdx.x
        if i < 16:
            out[i] = cuda.shfl_sync(0xFFFF, i, source)

    out = np.zeros(32, np.int32)
    if allowed:
        simulate(kernel, 1, 32, out, source, detect=True)
        assert (out[:16] == 3).all()
    else:
        match = r"shfl with mask 0x0000ffff: lane 0 reads from lane 20, which is not in the mask, so its value is undefined \(.*:\d+ in"
        with pytest.raises(SimulationError, match=match + r" kernel, block \(0, 0, 0\), thread \(0, 0, 0\)\)"):
            simulate(kernel, 1, 32, out, source)


@pytest.mark.parametrize("reader", [2, 7])
def test_the_lane_at_fault_is_named_whichever_arrives_last(reader):
    def kernel(out, reader):
        i = cuda.threadIdx.x
        if i < 8:
            out[i] = cuda.shfl_sync(0xFF, i, 9 if i == reader else 0)

    line = kernel.__code__.co_firstlineno + 3
    match = rf"lane {reader} reads from lane 9, .*:{line} in kernel, block \(0, 0, 0\), thread \({reader}, 0, 0\)"
    with pytest.raises(SimulationError, match=match):
        simulate(kernel, 1, 32, np.zeros(32, np.int32), reader)


def test_a_grids_barrier_after_an_early_return():
    def kernel(out):
        if cuda.grid(1) >= 40:
            return
        cuda.cg.this_grid().sync()
        out[cuda.grid(1)] = 1

    out = np.zeros(40, np.int32)
    match = r"24 threads have returned without reaching the grid's barrier, the first of them thread \(8, 0, 0\) of block \(1, 0, 0\)"
    with pytest.raises(SimulationError, match=match):
        simulate(kernel, 2, 32, out, detect=True)
    simulate(kernel, 2, 32, out, detect=False)  # on a GPU the first thread of a block arrives for all its threads
    assert out.all()
    with pytest.raises(SimulationError, match="56 threads have returned without reaching the grid's barrier"):
        simulate(kernel, 3, 32, out, detect=False)  # all threads of the last block have


def test_a_barrier_after_an_early_return_can_be_waived():
    def kernel(out):
        if cuda.threadIdx.x >= 40:
            return
        cuda.syncthreads()  # allow-barrier: since compute capability 7.0, threads that have exited need not arrive
        out[cuda.threadIdx.x] = 1

    out = np.zeros(40, np.int32)
    simulate(kernel, 1, 64, out, detect=True)
    assert out.all()


def test_a_lock_by_compare_and_swap():
    def kernel(lock, total):
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
        total[0] += 1
        cuda.nanosleep(10)
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)

    lock, total = np.zeros(1, np.int32), np.zeros(1, np.int32)
    simulate(kernel, 1, 64, lock, total)
    assert total[0] == 64


def test_a_spin_on_a_flag_that_nobody_raises_is_named():
    def kernel(flag):
        if cuda.threadIdx.x == 0:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
        cuda.syncthreads()

    with pytest.raises(SimulationError, match=r"the kernel hangs: 2 threads poll or wait.*test_exited_threads.py:\d+ in kernel, block"):
        simulate(kernel, 1, 2, np.zeros(1, np.int32))


def test_a_spin_without_atomics_is_named(monkeypatch):
    from minllm.sim import watchdog

    monkeypatch.setattr(watchdog, "SECONDS", 0.2)

    def kernel(flag, out):
        if cuda.threadIdx.x == 0:
            while flag[0] == 0:
                pass
            out[0] = 1
        else:
            flag[0] = 1

    match = r"this thread spins.*test_exited_threads.py:\d+ in kernel, block \(0, 0, 0\), thread \(0, 0, 0\)"
    with pytest.raises(SimulationError, match=match):
        simulate(kernel, 1, 2, np.zeros(1, np.int32), np.zeros(1, np.int32))


def test_the_watchdog_survives_a_simulation_that_ends_while_it_looks(monkeypatch):
    from minllm.sim import watchdog

    class Ending(list):
        def __len__(self):  # the list is empty by now, but its length was read before
            return 1

    monkeypatch.setattr(watchdog, "_watched", Ending())
    assert watchdog.newest() is None


def test_a_simulation_that_ends_first_leaves_a_newer_one_watched():
    from minllm.sim import watchdog

    has_begun, may_end = threading.Event(), threading.Event()

    def older():
        with watchdog.watched():
            has_begun.set()
            may_end.wait(10)

    thread = threading.Thread(target=older)
    thread.start()
    assert has_begun.wait(10)
    with watchdog.watched():
        may_end.set()
        thread.join()
        assert watchdog.newest() == threading.get_ident()
    assert watchdog.newest() is None


def test_a_long_loop_is_no_spin(monkeypatch):
    from minllm.sim import watchdog

    monkeypatch.setattr(watchdog, "SECONDS", 0.05)

    def kernel(out):
        total = float32(0)
        for i in range(300_000):
            total += float32(i % 3)
        out[0] = total

    out = np.zeros(1, np.float32)
    simulate(kernel, 1, 1, out)
    assert out[0] == 300_000


def test_memory_that_is_written_later_names_the_writer():
    def kernel(out):
        tile = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        out[i] = tile[(i + 1) % 64]
        tile[i] = float32(i)

    match = (
        r"shared memory that nobody wrote: tile\[1\] .*thread \(0, 0, 0\)\); thread \(1, 0, 0\) writes it later, at .*:\d+ in kernel: "
        "is a barrier or a wait missing"
    )
    with pytest.raises(SimulationError, match=match):
        simulate(kernel, 1, 64, np.zeros(64, np.float32), detect=True)


def test_minus_one_in_records_counts_as_written():
    def kernel(records, out):
        out[0] = records[0]["a"]

    records, out = np.zeros(1, [("a", np.int32)]), np.zeros(1, int32.name)
    records["a"] = -1
    simulate(kernel, 1, 1, records, out, detect=True)
    assert out[0] == -1
