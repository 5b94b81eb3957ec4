"""Instructions of fibres: waits for mbarriers, named barriers, wgmma.wait_group, elect.sync, and the fence of the async proxy."""

import numpy as np

from minllm.ptx import barrier, cluster, fence, warpgroup
from minllm.ptx.lanes.form import in_lanes
from minllm.ptx.warpgroup_product import WARPGROUP, run_groups
from minllm.sim.asynchrony import fence_mbarriers, state
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


def make_wait_group(instruction, pending):
    """The form of wgmma.wait_group."""

    def wait(lanes):
        threads = lanes.running
        groups = [threads[first : first + WARPGROUP] for first in range(0, len(threads), WARPGROUP)]
        if any(len({thread.number // WARPGROUP for thread in group}) > 1 or len(group) < WARPGROUP for group in groups):
            lanes.by_threads(instruction.emulation, True)
            return
        for group in groups:
            if len(state(group[0]).product_groups) > pending:
                lanes.run_as(group[-1], run_groups, group, pending)
                for thread in group if pending == 0 else ():
                    state(thread).registers_fenced = False

    in_lanes(instruction, threads=True)(wait)


for _pending in range(4):
    make_wait_group(getattr(warpgroup, f"wgmma_wait_group_{_pending}"), _pending)


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
