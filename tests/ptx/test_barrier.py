"""mbarriers and named barriers in the simulator: phases and bytes, and what it says of kernels that would hang; and the machine code."""

import numpy as np
import pytest
from numba import cuda, uint64

from minllm import ptx
from minllm.errors import SimulationError
from minllm.runtime.kernel import kernel
from minllm.runtime.machine_code import sass_of_all
from minllm.sim.engines import using_engine
from tests.ptx.cases_barrier import (
    PIPELINES,
    check_elect,
    check_pipeline,
    check_redux,
    check_turns,
    make_pipeline_kernel,
    redux_kernel,
    turns_kernel,
)


@pytest.mark.parametrize("pipeline", PIPELINES, ids=str)
def test_a_pipeline_loses_nothing(pipeline, device):
    check_pipeline(pipeline, device)


def test_warps_take_turns_at_named_barriers(device):
    check_turns(device)


def test_one_lane_is_elected(device):
    check_elect(device)


@pytest.mark.parametrize("engine", ["lanes", "threads"])
def test_a_warp_reduces_words(device, engine):
    with using_engine(engine):
        check_redux(device)


def test_machine_code():
    x = np.zeros((1, 64), np.float32)
    compiled = [
        make_pipeline_kernel(2).compile(x, x[0], 1),
        turns_kernel.compile(np.zeros((4, 32), np.int32)),
        redux_kernel.compile(*2 * [np.zeros(96, np.uint32)]),
    ]
    phases = ("SYNCS.EXCH.64", "SYNCS.PHASECHK.TRANS64.TRYWAIT", "SYNCS.ARRIVE.TRANS64")
    expected = (phases, ("BAR.SYNC", "BAR.ARV", "ELECT"), ("REDUX.MAX",))
    for one, words, sass in zip(compiled, expected, sass_of_all(compiled), strict=True):
        for word in words:
            assert word in "\n".join(sass)
        assert (one.spill_bytes, one.stack_bytes) == (0, 0)


MISTAKES = [
    ("starved", r"64 threads .* wait at the mbarrier at shared address 0 .* lacks 1 of 2 arrivals .*, line \d+ of wrong_kernel"),
    ("no bytes", "lacks 0 of 2 arrivals and 16 bytes that nobody sends"),
    ("too many", "one arrival too many"),
    ("misaligned", "not aligned to 8 bytes"),
    ("unfenced", "no fence.mbarrier_init or fence.proxy.async has made visible"),
    ("no such barrier", "no mbarrier has been initialised at shared address 8"),
    ("used after inval", "no mbarrier has been initialised at shared address 0"),
    ("bad parity", "parity is 0 or 1, not 2"),
    ("bad count", "an mbarrier of 0 arrivals"),
]


def make_wrong(mistake):
    """One barrier of two arrivals and sixteen bytes, and something wrong with it."""
    which = [wrong for wrong, _ in MISTAKES].index(mistake)

    @kernel
    def wrong_kernel(x):
        barriers = cuda.shared.array(4, uint64, 128)
        address = ptx.shared_address(barriers, 0)
        thread = cuda.threadIdx.x
        if thread == 0:
            ptx.mbarrier_init(address + (4 if which == 3 else 0), 0 if which == 8 else 2)
            if which != 4:
                ptx.fence_mbarrier_init()
        cuda.syncthreads()
        if thread == 0:
            if which == 0:
                ptx.mbarrier_arrive(address)
            if which == 1:
                ptx.mbarrier_arrive_expect_tx(address, 16)
                ptx.mbarrier_arrive(address)
            if which == 2:
                ptx.mbarrier_expect_tx(address, 16)
                ptx.mbarrier_arrive(address)
                ptx.mbarrier_arrive(address)
                ptx.mbarrier_arrive(address)
            if which == 4:
                ptx.cp_async_bulk_shared_global(address + 16, x, 0, 16, address)
            if which == 5:
                ptx.mbarrier_arrive(address + 8)
            if which == 6:
                ptx.mbarrier_inval(address)
                ptx.mbarrier_arrive(address)
        ptx.mbarrier_wait_parity(address, 2 if which == 7 else 0)

    return wrong_kernel


@pytest.mark.parametrize("mistake, complaint", MISTAKES)
def test_kernels_that_would_hang_say_why(mistake, complaint):
    with pytest.raises(SimulationError, match=complaint):
        make_wrong(mistake).simulate[1, 64](np.zeros(8, np.float32))


@kernel
def lonely_warp_kernel(x):
    if cuda.threadIdx.x < 32:
        ptx.bar_sync(3, 64)


@kernel
def wrong_number_kernel(x):
    ptx.bar_sync(16, 64)


@kernel
def half_a_warp_kernel(x):
    ptx.bar_sync(1, 48)


@pytest.mark.parametrize(
    "wrong, complaint",
    [
        (lonely_warp_kernel, "32 threads .* wait at named barrier 3 for 64 threads"),
        (wrong_number_kernel, "named barrier 16; 1 to 15"),
        (half_a_warp_kernel, "48 threads; it takes whole warps"),
    ],
)
def test_named_barriers_that_nobody_completes(wrong, complaint):
    with pytest.raises(SimulationError, match=complaint):
        wrong.simulate[1, 64](np.zeros(1, np.float32))
