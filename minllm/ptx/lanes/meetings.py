"""Instructions of fibres: waits for mbarriers, named barriers, elect.sync, and the fence of the async proxy."""

import numpy as np

from minllm.ptx import barrier, cluster, fence
from minllm.ptx.lanes.form import in_lanes
from minllm.sim.asynchrony import acquire, fence_mbarriers
from minllm.sim.lanes.warps import votes


@in_lanes(barrier.mbarrier_try_wait_parity, threads=True)
def mbarrier_try_wait_parity(lanes, address, parity):
    """All lanes that wait for one phase look at it once: the next phases may complete before this fibre continues."""
    for operands, threads in lanes.alike(address, parity):
        lanes.run_as(threads[0], barrier.wait_parity, *operands, threads)
    return 1


@in_lanes(barrier.bar_sync, threads=True)
def bar_sync(lanes, number, count):
    """All lanes arrive at their barriers, and one at each waits for it."""
    calls = lanes.alike(number, count)
    for operands, threads in calls:
        for thread in threads[:-1]:
            lanes.run_as(thread, barrier.bar_arrive.emulation, *operands)
    for operands, threads in calls:
        lanes.run_as(threads[-1], barrier.bar_sync.emulation, *operands)
        key, _ = barrier.named_barrier(*operands)
        for thread in threads[:-1]:
            acquire(thread, key)


@in_lanes(cluster.elect_sync)
def elect_sync(lanes, members):
    first = votes(lanes, members, True)
    return ((first & -first) >> lanes.laneid & 1).astype(np.int64)


@in_lanes(fence.fence_proxy_async, threads=True)
def fence_proxy_async(lanes):
    threads = lanes.running
    lanes.run_as(threads[0], fence.fence_proxy_async.emulation)
    for thread in threads[1:]:
        fence_mbarriers(thread)
