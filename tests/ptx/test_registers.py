"""setmaxnreg: which counts there are, and the pool of registers that a block's warpgroups share."""

import numpy as np
import pytest
from numba import cuda

from minllm import ptx
from minllm.errors import SimulationError
from minllm.runtime.kernel import kernel


@pytest.mark.parametrize("count", [20, 44, 264])
def test_setmaxnreg_takes_what_the_hardware_takes(count):
    @kernel
    def registers_kernel(x):
        ptx.setmaxnreg_dec(count)

    with pytest.raises(SimulationError, match="a multiple of 8 from 24 to 256"):
        registers_kernel.simulate[1, 32](np.zeros(1, np.float32))


def handed_over(dec, inc, blocks=1):
    """Three warpgroups, 65536 / 384 / blocks registers a thread, in steps of 8: the first gives, the others take and say so."""

    @kernel(launch_bounds=(384, blocks))
    def kernel_of_three(out):
        if cuda.threadIdx.x < 128:
            ptx.setmaxnreg_dec(dec)
        else:
            ptx.setmaxnreg_inc(inc)
            out[cuda.threadIdx.x] = 1

    return kernel_of_three


@pytest.mark.parametrize("dec, inc, blocks", [(24, 240, 1), (40, 232, 1), (168, 168, 1), (24, 104, 2)])
def test_what_one_warpgroup_gives_back_others_get(dec, inc, blocks):
    out = np.zeros(384, np.float32)
    handed_over(dec, inc, blocks).simulate[1, 384](out)
    assert out.sum() == 256


@pytest.mark.parametrize("dec, inc, blocks, free", [(40, 240, 1, 16384 - 9216), (168, 176, 1, 0), (24, 112, 2, 7168 - 4096)])
def test_a_warpgroup_that_wants_more_than_there_is_waits_for_ever(dec, inc, blocks, free):
    wanted = rf"128 threads .* wait at setmaxnreg.inc {inc} of warpgroup 2, which wants \d+ registers where {free} are free"
    with pytest.raises(SimulationError, match=wanted):
        handed_over(dec, inc, blocks).simulate[1, 384](np.zeros(384, np.float32))


@pytest.mark.parametrize("dec, inc, complaint", [(176, 176, "a thread: none to give"), (24, 160, "has 168 a thread already")])
def test_only_who_has_more_gives_and_who_has_less_gets(dec, inc, complaint):
    with pytest.raises(SimulationError, match=complaint):
        handed_over(dec, inc).simulate[1, 384](np.zeros(384, np.float32))


@pytest.mark.parametrize(
    "warps, threads, complaint", [(3, 128, "96 threads .* wait at setmaxnreg.dec 24, which all threads"), (8, 192, "whole warpgroups")]
)
def test_a_whole_warpgroup_executes_it(warps, threads, complaint):
    @kernel(launch_bounds=(threads, 1))
    def part_kernel(out):
        if cuda.threadIdx.x < 32 * warps:
            ptx.setmaxnreg_dec(24)

    with pytest.raises(SimulationError, match=complaint):
        part_kernel.simulate[1, threads](np.zeros(1, np.float32))
