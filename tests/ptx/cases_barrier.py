"""mbarriers and named barriers: a pipeline of stages between a producer and consumers, and warps that take turns."""

import functools

import numpy as np
from numba import cuda, float32, int32, uint64

from minllm import ptx
from minllm.runtime.kernel import kernel, launch

PIPELINES = [(1, 1), (1, 4), (2, 1), (3, 7), (4, 12)]  # stages, rounds
CONSUMERS = 64


@functools.cache
def make_pipeline_kernel(stages):
    """One warp writes numbers into a ring of stages, two warps add them up; full and empty barriers keep them apart."""
    barrier_count, elements = 2 * stages, stages * CONSUMERS

    @kernel
    def pipeline_kernel(x, out, rounds):
        # x: float32 [rounds, 64], out: float32 [64]
        ring = cuda.shared.array(elements, float32, 128)
        barriers = cuda.shared.array(barrier_count, uint64, 8)
        full, empty = ptx.shared_address(barriers, 0), ptx.shared_address(barriers, stages)
        thread = cuda.threadIdx.x
        if thread == 0:
            for stage in range(stages):
                ptx.mbarrier_init(full + 8 * stage, 32)
                ptx.mbarrier_init(empty + 8 * stage, CONSUMERS)
        cuda.syncthreads()
        if thread < 32:
            for turn in range(rounds):
                stage, phase = turn % stages, turn // stages & 1
                ptx.mbarrier_wait_parity(empty + 8 * stage, phase ^ 1)
                ring[stage * CONSUMERS + thread] = x[turn, thread]
                ring[stage * CONSUMERS + 32 + thread] = x[turn, 32 + thread]
                ptx.mbarrier_arrive(full + 8 * stage)
        else:
            total = float32(0)
            for turn in range(rounds):
                stage, phase = turn % stages, turn // stages & 1
                ptx.mbarrier_wait_parity(full + 8 * stage, phase)
                total += ring[stage * CONSUMERS + thread - 32]
                ptx.mbarrier_arrive(empty + 8 * stage)
            out[thread - 32] = total

    return pipeline_kernel


def check_pipeline(pipeline, device):
    """Everything that the producer wrote has been added, once."""
    stages, rounds = pipeline
    x = np.random.default_rng(rounds).integers(0, 100, (rounds, CONSUMERS)).astype(np.float32)
    out = device.array(np.zeros(CONSUMERS, np.float32))
    launch(make_pipeline_kernel(stages), 1, 96, (device.array(x), out, rounds))
    np.testing.assert_array_equal(device.host(out), x.sum(0))


@kernel
def turns_kernel(out):
    # out: int32 [4, 32]: what each warp found written when its turn came, warps in the order 3, 2, 1, 0
    written = cuda.shared.array(1, int32, 8)
    thread = cuda.threadIdx.x
    warp = thread >> 5
    if thread == 0:
        written[0] = 0
    cuda.syncthreads()
    if warp < 3:
        ptx.bar_sync(warp + 1, 64)
    out[warp, thread & 31] = written[0]
    cuda.syncwarp()
    if thread & 31 == 0 and ptx.elect_sync(1):
        written[0] = written[0] * 10 + warp
    cuda.syncwarp()
    if warp > 0:
        ptx.bar_arrive(warp, 64)


def check_turns(device):
    """Each warp sees what those before it wrote."""
    out = device.array(np.zeros((4, 32), np.int32))
    launch(turns_kernel, 1, 128, (out,))
    np.testing.assert_array_equal(device.host(out), np.array([321, 32, 3, 0])[:, None] * np.ones(32, int))


@kernel
def elect_kernel(out):
    out[cuda.threadIdx.x] = ptx.elect_sync(0xFFFFFFFF)


def check_elect(device):
    """One lane of a warp is elected."""
    out = device.array(np.zeros(32, np.int32))
    launch(elect_kernel, 1, 32, (out,))
    found = device.host(out)
    assert found.sum() == 1 and found.max() == 1


@kernel
def redux_kernel(values, out):
    lane = cuda.threadIdx.x & 31
    if lane < 20:  # the lanes of a mask that is not full
        out[cuda.threadIdx.x] = ptx.redux_sync_max_u32(values[cuda.threadIdx.x], 0xFFFFF)
    else:
        out[cuda.threadIdx.x] = 7


def check_redux(device):
    """The largest unsigned word of each warp's mask, in all its lanes."""
    values = np.random.default_rng(0).integers(0, 2**32, 96, dtype=np.uint32)
    values[40] = 2**32 - 1
    out = device.array(np.zeros(96, np.uint32))
    launch(redux_kernel, 1, 96, (device.array(values), out))
    expected = np.repeat(values.reshape(3, 32)[:, :20].max(axis=1)[:, None], 32, axis=1)
    expected[:, 20:] = 7
    np.testing.assert_array_equal(device.host(out), expected.reshape(-1))
