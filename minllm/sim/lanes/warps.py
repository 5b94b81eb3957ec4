"""Warp-wide instructions: shuffles, votes, and who takes part."""

import functools

import numpy as np

from minllm.sim.lanes.faults import Fault, NotInLanes
from minllm.sim.lanes.masks import VECTOR, some
from minllm.sim.thread import WARP_SIZE

FULL_MASK = 0xFFFFFFFF
KINDS = dict(shfl="shfl", xor="shfl_xor", down="shfl_down", up="shfl_up")  # as the threads name them
BITS = np.int64(1) << np.arange(WARP_SIZE)


def check_members(lanes, members):
    """Send the launch to the threads unless in each warp exactly the lanes of the mask `members` have come, or none."""
    if not lanes.whole:
        raise Fault("a warp-wide instruction of a warp whose threads have parted")
    if type(members) is VECTOR:
        known = members[lanes.chosen[0]] if lanes.chosen is not None else members[0]
        here = members if lanes.chosen is None else members[lanes.chosen]
        if some(here != known):
            raise NotInLanes("a mask of lanes that differs between threads")
        members = known
    members = int(members) & FULL_MASK
    if members == FULL_MASK and lanes.mask is None:
        return members
    wanted = members >> lanes.laneid & 1 == 1
    here = np.ones(lanes.size, bool) if lanes.mask is None else lanes.mask
    if some(here & ~wanted):
        raise Fault("a lane calls a warp-wide instruction that leaves it out")
    warp = lanes.warp_of
    if (wanted & ~here & np.bincount(warp, here, lanes.warps).astype(bool)[warp]).any():
        raise Fault("lanes of a warp-wide instruction do not come together")
    return members


def whole_warps(lanes):
    """The numbers of the warps that run an instruction of whole warps; None for all."""
    if lanes.threads % WARP_SIZE:
        raise Fault("an instruction of whole warps in a block with a part of a warp")
    check_members(lanes, FULL_MASK)
    return None if lanes.mask is None else np.flatnonzero(lanes.mask.reshape(-1, WARP_SIZE)[:, 0])


def shuffle(kind, lanes, members, value, operand):
    """The values that each lane reads from another one."""
    lanes.collective(KINDS[kind])
    members, lane, operand = check_members(lanes, members), lanes.laneid, operand % WARP_SIZE
    if kind == "shfl":
        source = operand + np.zeros_like(lane)
    elif kind == "xor":
        source = lane ^ operand
    elif kind == "down":
        source = np.where(lane + operand < WARP_SIZE, lane + operand, lane)
    else:
        source = np.where(lane >= operand, lane - operand, lane)
    if members != FULL_MASK or lanes.threads % WARP_SIZE or lanes.mask is not None:
        source = checked_sources(lanes, members, source)
    if type(value) is not VECTOR:
        return value
    return value[lanes.lane - lane + source]


def checked_sources(lanes, members, source):
    """The sources of the lanes of the mask; sends the launch to the threads where one does not take part."""
    inside = (source >= 0) & (source < WARP_SIZE)
    inside &= (lanes.number - lanes.laneid + source < lanes.threads) & (members >> np.where(inside, source, 0) & 1 == 1)
    missing = ~inside if lanes.mask is None else ~inside & lanes.mask
    if some(missing):
        raise Fault("a lane reads from one that does not take part")
    return np.where(inside, source, lanes.laneid)


SHUFFLES = {kind: functools.partial(shuffle, kind) for kind in ("shfl", "xor", "down", "up")}


def votes(lanes, members, predicate):
    """For each lane the votes of its warp, a mask."""
    check_members(lanes, members)
    predicate = predicate != 0 if type(predicate) is VECTOR else np.full(lanes.size, bool(predicate))
    if lanes.mask is not None:
        predicate = predicate & lanes.mask
    return np.bincount(lanes.warp_of, np.where(predicate, BITS[lanes.laneid], 0), lanes.warps).astype(np.int64)[lanes.warp_of]


def members_of(lanes, members):
    """For each lane the mask of the lanes that take part."""
    return votes(lanes, members, True)


def ballot(lanes, members, predicate):
    """The votes as numba-cuda has them, int32."""
    lanes.collective("ballot")
    return votes(lanes, members, predicate).astype(np.int32).astype(np.int64)


def any_of(lanes, members, predicate):
    """Whether the predicate holds in a lane of the warp that takes part."""
    lanes.collective("any")
    return votes(lanes, members, predicate) != 0


def all_of(lanes, members, predicate):
    """Whether the predicate holds in all lanes of the warp that take part."""
    lanes.collective("all")
    return votes(lanes, members, predicate) == members_of(lanes, members)


def syncwarp(lanes, members=FULL_MASK):
    """A barrier of warps, which orders memory accesses if whole warps take part."""
    lanes.collective("syncwarp")
    if check_members(lanes, members) == FULL_MASK:
        lanes.after_syncwarp()


def votes_of_block(lanes, predicate):
    """The number of threads of each block for which a predicate holds."""
    lanes.syncthreads()
    if lanes.size != lanes.threads * lanes.count:
        raise NotInLanes("a vote of a block whose threads have parted")
    if lanes.dead is not False or lanes.mask is not None:
        raise NotInLanes("a vote of a block of which threads have returned")
    predicate = predicate != 0 if type(predicate) is VECTOR else np.full(lanes.size, bool(predicate))
    counts = predicate.reshape(lanes.count, lanes.threads).sum(1)
    return int(counts[0]) if lanes.count == 1 else counts[lanes.block_of]
