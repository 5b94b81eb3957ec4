"""Instructions in which threads of a fibre meet others: mbarriers, named barriers, cluster barriers, setmaxnreg, elect.sync,
redux.sync, fences."""

import numpy as np

from minllm.ptx import barrier, cluster, fence, reduction, register
from minllm.ptx.lanes.form import in_lanes
from minllm.sim.asynchrony import fence_mbarriers, meet, state
from minllm.sim.lanes.faults import Fault, NotInLanes
from minllm.sim.lanes.masks import VECTOR
from minllm.sim.lanes.warps import check_members, votes
from minllm.sim.mbarrier import mbarrier_at
from minllm.sim.registers import resize


@in_lanes(barrier.mbarrier_try_wait_parity, threads=True)
def mbarrier_try_wait_parity(lanes, address, parity):
    """All lanes that wait for one phase look at it once: the next phases may complete before this fibre continues.

    The last one looks, because it is hardly the one that has initialised the mbarrier: detectors check that it may use it.
    """
    for operands, (*others, last) in lanes.alike(address, parity):
        lanes.acquire(others, lanes.wait_as([last, *others], barrier.wait_parity, *operands))
    return 1


@in_lanes(barrier.mbarrier_arrive, barrier.mbarrier_arrive_cluster, barrier.mbarrier_arrive_relaxed_cluster, threads=True)
def mbarrier_arrive(lanes, address):
    """All lanes arrive at once, and the last one for them."""
    for operands, (*others, last) in lanes.alike(address):
        lanes.run_as(last, arrive, lanes, *operands, others)


def arrive(lanes, address, others):
    """Arrivals of the running thread and of `others` at an mbarrier."""
    found = mbarrier_at(address)
    lanes.release(others, (found, found.completed))
    found.arrive(1 + len(others))


@in_lanes(barrier.bar_sync, threads=True)
def bar_sync(lanes, number, count):
    """All lanes arrive at their barriers, and one at each waits for it."""
    return meet_at_barriers(lanes, number, count, True)


@in_lanes(barrier.bar_arrive, threads=True)
def bar_arrive(lanes, number, count):
    """All lanes arrive at their barriers."""
    return meet_at_barriers(lanes, number, count, False)


def meet_at_barriers(lanes, number, count, waits):
    """bar.sync or bar.arrive."""
    calls = [(barrier.named_barrier(*operands), threads) for operands, threads in lanes.alike(number, count)]
    met, meetings = state(lanes.block).met, state(lanes.block).meetings
    for (key, wanted), threads in sorted(calls, key=lambda call: call[0][1] > len(call[1])):  # those that need no others first
        this, others = (key, met[key]), threads[1:]
        if len(meetings[key][0] if key in meetings else ()) + len(threads) > wanted:
            raise NotInLanes("more threads at a named barrier than it counts")
        lanes.release(others, this)
        lanes.wait_as(threads, meet, key, wanted, f"named barrier {key[1]} for {wanted} threads", None, None, waits, True, others)
        if waits:
            lanes.acquire(others, this)


@in_lanes(cluster.barrier_cluster_arrive, threads=True)
def barrier_cluster_arrive(lanes):
    """All lanes arrive at once."""
    arrive_at_cluster(lanes, True)


@in_lanes(cluster.barrier_cluster_arrive_relaxed, threads=True)
def barrier_cluster_arrive_relaxed(lanes):
    """All lanes arrive at once, without an order of memory accesses."""
    arrive_at_cluster(lanes, False)


def arrive_at_cluster(lanes, orders):
    """barrier.cluster.arrive."""
    first, *others = lanes.running
    found = lanes.run_as(first, cluster.cluster_of, first)
    (lanes.release if orders else lanes.arrives)(others, (found, found.phase))
    lanes.run_as(first, found.arrive, first, orders, others)


@in_lanes(cluster.barrier_cluster_wait, threads=True)
def barrier_cluster_wait(lanes):
    """One lane waits for all: the next phase cannot complete without them."""
    first, *others = lanes.running
    lanes.run_as(first, cluster.barrier_cluster_wait.emulation)
    found = lanes.block.cluster
    if any(found.arrived_in.get(thread) != found.arrived_in[first] for thread in others):
        raise Fault("threads wait for a cluster's barrier at which they have not arrived")
    lanes.acquire(others, (found, found.arrived_in[first]))


@in_lanes(register.setmaxnreg_dec, threads=True)
def setmaxnreg_dec(lanes, count):
    """Each warpgroup of the mask gives registers back at once."""
    resize_warpgroups(lanes, "dec", register.setmaxnreg_dec.emulation, count)


@in_lanes(register.setmaxnreg_inc, threads=True)
def setmaxnreg_inc(lanes, count):
    """Each warpgroup of the mask takes registers at once."""
    resize_warpgroups(lanes, "inc", register.setmaxnreg_inc.emulation, count)


def resize_warpgroups(lanes, action, emulation, count):
    """setmaxnreg. The threads of a warpgroup that has parted meet in its emulation."""
    try:
        parts = lanes.warpgroups()
    except NotInLanes:
        lanes.by_threads(emulation, True, count)
        return
    for part in parts:
        lanes.run_as(lanes.members[part.start], resize, action, int(count))


@in_lanes(cluster.elect_sync)
def elect_sync(lanes, members):
    """1 in the first lane of each warp's mask, 0 in its other lanes."""
    lanes.collective("elect")
    first = votes(lanes, members, True)
    return ((first & -first) >> lanes.laneid & 1).astype(np.int64)


@in_lanes(reduction.redux_sync_max_u32)
def redux_sync_max_u32(lanes, value, members):
    """The largest value of each warp's mask."""
    lanes.collective("redux")
    check_members(lanes, members)
    value = value if type(value) is VECTOR else np.full(lanes.size, value)
    largest = np.zeros(lanes.warps, np.int64)
    here = slice(None) if lanes.mask is None else lanes.mask
    np.maximum.at(largest, lanes.warp_of[here], value[here].astype(np.int64))
    return largest[lanes.warp_of]


@in_lanes(fence.fence_proxy_async, threads=True)
def fence_proxy_async(lanes):
    """Make stores to shared memory, and new mbarriers, visible to TMA and wgmma."""
    threads = lanes.running
    lanes.run_as(threads[0], fence.fence_proxy_async.emulation)
    for thread in threads[1:]:
        fence_mbarriers(thread)
