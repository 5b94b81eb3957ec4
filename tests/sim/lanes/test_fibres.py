"""Kernels whose threads wait for each other in branches run in fibres: the same bits as in threads."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda, float32, int32, uint32

from minllm import ptx
from minllm.sim import detecting, machine, simulate, thread, using_engine
from minllm.sim.engines import launches
from tests.sim.every_kernel import ROWS
from tests.sim.lanes.engines import compare


def pipeline(producer_first):
    """A warp that fills two slots of shared memory, and a warp that adds them up; either stands in the first arm of the branch."""

    @cuda.jit(device=True)
    def produce(x, slots, full, empty):
        lane = cuda.threadIdx.x % 32
        for step in range(x.shape[0]):
            slot, parity = step % 2, step // 2 % 2
            ptx.mbarrier_wait_parity(empty + uint32(8 * slot), uint32(parity ^ 1))
            slots[slot, lane] = x[step, lane]
            ptx.mbarrier_arrive(full + uint32(8 * slot))

    @cuda.jit(device=True)
    def consume(out, slots, full, empty, steps):
        lane, total = cuda.threadIdx.x % 32, float32(0)
        for step in range(steps):
            slot, parity = step % 2, step // 2 % 2
            ptx.mbarrier_wait_parity(full + uint32(8 * slot), uint32(parity))
            total += slots[slot, 31 - lane]
            ptx.mbarrier_arrive(empty + uint32(8 * slot))
        out[cuda.blockIdx.x, lane] = total

    def kernel(x, out):
        slots = cuda.shared.array((2, 32), float32)
        barriers = cuda.shared.array(4, np.int64)
        full, empty = ptx.shared_address(barriers, 0), ptx.shared_address(barriers, 2)
        if cuda.threadIdx.x == 0:
            for i in range(4):
                ptx.mbarrier_init(full + uint32(8 * i), uint32(32))
            ptx.fence_mbarrier_init()
        cuda.syncthreads()
        if (cuda.threadIdx.x < 32) == producer_first:
            produce(x, slots, full, empty)
        else:
            consume(out, slots, full, empty, x.shape[0])
        cuda.syncthreads()
        if cuda.threadIdx.x == 63:
            out[cuda.blockIdx.x, 32] = out[cuda.blockIdx.x, 0]

    return kernel


@pytest.mark.parametrize("producer_first", [True, False])
def test_a_pipeline_of_two_warps(producer_first):
    kernel = pipeline(producer_first)
    x = np.random.default_rng(0).standard_normal((7, 32)).astype(np.float32)
    for _ in range(2):  # the second launch begins with the fibres of the first
        assert compare(kernel, 2, 64, x, np.zeros((2, 33), np.float32), detect=False) is None


class Shuffled(thread.Runnable):
    """A queue of runnable threads in which each gets a random place."""

    order = random.Random()

    def append(self, runnable):
        self.insert(self.order.randrange(len(self) + 1), runnable)

    def extend(self, runnables):
        for one in runnables:
            self.append(one)


def in_any_order(run, seeds):
    """Check with several seeds that `run` gives the same whichever runnable thread or fibre goes on, and that lanes run its launches."""
    before = machine.Runnable

    @settings(max_examples=seeds, deadline=None, database=None)
    @given(st.integers(0, 2**32))
    def check(seed):
        Shuffled.order = random.Random(seed)
        machine.Runnable = Shuffled
        launches.clear()
        try:
            with detecting(False), using_engine("lanes"):
                run()
        finally:
            machine.Runnable = before
        assert {why for _, why in launches} == {None}

    check()


@pytest.mark.parametrize("producer_first", [True, False])
def test_fibres_go_on_in_any_order(producer_first):
    kernel, x = pipeline(producer_first), np.random.default_rng(0).standard_normal((9, 32)).astype(np.float32)

    def run():
        out = np.zeros((2, 33), np.float32)
        simulate(kernel, 2, 64, x, out)
        total = np.add.accumulate(x)[-1, ::-1]
        assert (out == np.append(total, total[0])).all()

    in_any_order(run, 12)


def test_the_fibres_of_a_cluster_go_on_in_any_order():
    (of_few_rows,) = (row for name, row in ROWS.items() if "early=True" in name)
    in_any_order(of_few_rows.run, 4)


def test_lanes_look_at_a_phase_once():
    """The next two phases complete between the wait and the lanes' next instruction: all lanes have seen the first."""

    def kernel(out):
        barriers, lane = cuda.shared.array(1, np.int64), cuda.threadIdx.x % 32
        address = ptx.shared_address(barriers, 0)
        if cuda.threadIdx.x == 0:
            ptx.mbarrier_init(address, uint32(1))
            ptx.fence_mbarrier_init()
        cuda.syncthreads()
        if cuda.threadIdx.x < 32:
            ptx.bar_arrive(1, 64)
            ptx.mbarrier_wait_parity(address, uint32(0))
            out[lane] = int32(1)
        else:
            ptx.bar_sync(1, 64)
            if lane == 0:
                ptx.mbarrier_arrive(address)
                ptx.mbarrier_arrive(address)

    out = np.zeros(32, np.int32)
    for _ in range(2):
        launches.clear()
        simulate(kernel, 1, 64, out, engine="lanes", detect=False)
        assert {why for _, why in launches} == {None} and out.all()


def test_lanes_of_one_fibre_wait_at_different_named_barriers():
    def kernel(x, out):
        tile, t = cuda.shared.array(128, float32), cuda.threadIdx.x
        tile[t] = x[t]
        ptx.bar_sync(1 + t // 64, 64)
        out[t] = tile[t ^ 63]

    x = np.arange(128, dtype=np.float32)
    assert compare(kernel, 1, 128, x, np.zeros(128, np.float32), detect=False) is None


def test_named_barriers():
    def kernel(x, out):
        tile, t = cuda.shared.array(128, float32), cuda.threadIdx.x
        if t < 64:
            tile[t] = x[t]
            ptx.bar_sync(1, 64)
            out[t] = tile[63 - t]
            ptx.bar_arrive(3, 128)
        else:
            tile[t] = x[t] + float32(1)
            ptx.bar_sync(2, 64)
            out[t] = tile[191 - t]
            ptx.bar_sync(3, 128)
            out[t] += out[t - 64]

    x = np.arange(128, dtype=np.float32)
    assert compare(kernel, 1, 128, x, np.zeros(128, np.float32), detect=False) is None


def test_warps_of_one_fibre_that_take_turns_get_fibres_of_their_own():
    def kernel(out):
        turns = cuda.shared.array(1, int32)
        warp = cuda.threadIdx.x // 32
        if cuda.threadIdx.x == 0:
            turns[0] = 0
        cuda.syncthreads()
        if warp == 2:
            ptx.bar_arrive(1, 64)
        for _ in range(2):
            ptx.bar_sync(1 + warp, 64)
            if cuda.threadIdx.x % 32 == 0:
                out[turns[0]] = warp
                turns[0] += 1
            ptx.bar_arrive(1 + (warp + 1 if warp < 2 else 0), 64)
        if warp == 0:
            ptx.bar_sync(1, 64)

    assert compare(kernel, 1, 96, np.full(6, -1, np.int32), detect=True) is None


@pytest.mark.parametrize("orders", [True, False])
def test_a_store_after_an_own_load_follows_what_the_load_followed(orders):
    """Lanes load words of others, and behind a barrier their own, before they store to them."""

    def kernel(out):
        words, lane = cuda.shared.array(64, int32), cuda.threadIdx.x
        words[lane] = lane
        ptx.bar_sync(1, 64)
        other = words[lane ^ 1]
        if orders:
            ptx.bar_sync(1, 64)
        words[lane] = words[lane] + 1
        ptx.bar_sync(1, 64)
        out[lane] = other + words[63 - lane]

    why = compare(kernel, 1, 64, np.zeros(64, np.int32), detect=True)
    assert why is None if orders else why.startswith("a possible fault: a race")


def test_a_deadlock_is_left_to_the_threads():
    def kernel(out):
        barriers = cuda.shared.array(1, np.int64)
        address = ptx.shared_address(barriers, 0)
        if cuda.threadIdx.x == 0:
            ptx.mbarrier_init(address, uint32(33))
            ptx.fence_mbarrier_init()
        cuda.syncthreads()
        ptx.mbarrier_arrive(address)
        ptx.mbarrier_wait_parity(address, uint32(0))
        out[cuda.threadIdx.x] = int32(1)

    assert compare(kernel, 1, 32, np.zeros(32, np.int32), detect=False) == "a possible fault: threads wait for each other"
