"""The order of the accesses of a grid's threads to global memory.

Every access and every synchronisation has a position in one sequence, the order in which the simulator executes them. Of two accesses by
different threads the first is ordered before the second if between them

- their block passed a block barrier, or the whole grid a grid barrier;
- as lanes of one warp, both executed a syncwarp;
- their block, or their cluster, acquired what another thread released: an mbarrier, a named barrier, a cluster's barrier;
- the first thread's block executed a fence and then an atomic, and the second thread's block an atomic on the same address after that;
- the first thread stored with release, and the second loaded with acquire from the same address after that; or a block barrier stands
  between the first thread and the one of its block that stored, or between the one that loaded and the second.

The third and fourth rule compare blocks instead of threads: they may take two unordered accesses for ordered, but not vice versa. Accesses
of two GPUs are ordered only by the last rule, and by a fence of system scope before an atomic.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from typing import NamedTuple

from minllm.sim.thread import WARP_SIZE

THREAD_BITS = 10  # a block has at most 1,024 threads


class Release(NamedTuple):
    """An atomic after a fence: accesses of `block` before position `fenced` are visible after an atomic on the same address.

    serial: the thread that made these accesses; None for all threads of the block. system: whether other GPUs see them too.
    """

    block: int
    serial: int | None
    fenced: int
    system: bool


class Take(NamedTuple):
    """An atomic that sees the first `count` releases at an address.

    serial: its thread; None for an atomic of GPU scope, which orders all threads of the block.
    """

    position: int
    address: tuple
    count: int
    serial: int | None


class GridOrder:
    """Positions of synchronisations. A thread's `serial` is its block's number << THREAD_BITS | its own number."""

    def __init__(self):
        self.barriers = defaultdict(list)  # block -> positions
        self.grid_barriers = []
        self.warps = defaultdict(lambda: ([], []))  # (block, warp) -> (positions, masks of lanes)
        self.acquired = defaultdict(list)  # block -> positions of acquires
        self.clusters = {}  # block -> number of its cluster
        self.gpus = []  # for each block, the rank of its GPU; None if the launch has one GPU
        self.fences = {}  # block -> (position of its last fence, whether other GPUs see it)
        self.releases = defaultdict(list)  # address -> [Release]
        self.taken = defaultdict(list)  # block -> [Take]
        self.relaxed = defaultdict(dict)  # thread -> {address: number of releases that its relaxed atomics have seen}

    def fence(self, serial, position, system):
        """Record a fence of GPU or system scope, which turns the thread's earlier relaxed atomics into acquires."""
        block = serial >> THREAD_BITS
        self.fences[block] = position, system
        seen = self.relaxed.pop(serial, {}).items()
        self.taken[block] += [Take(position, address, count, serial) for address, count in seen]

    def atomic(self, serial, address, position, ordering):
        """Record an atomic of a thread. ordering: "acquire", "release" or "relaxed", all of system scope; None for GPU scope.

        An atomic of GPU scope acquires all releases at its address, and releases the block's accesses before its last fence.
        """
        block, releases = serial >> THREAD_BITS, self.releases[address]
        if ordering in (None, "acquire"):
            take = Take(position, address, len(releases), serial if ordering else None)
            if [take[1:]] != [last[1:] for last in self.taken[block][-1:]]:  # equal for a poll that finds nothing new
                self.taken[block].append(take)
        if ordering == "relaxed" and releases:
            self.relaxed[serial][address] = len(releases)
        if ordering == "release":
            releases.append(Release(block, serial, position, True))
        elif ordering != "acquire" and block in self.fences:
            release = Release(block, None, *self.fences[block])
            if release not in releases[-1:]:
                releases.append(release)

    def ordered(self, first, start, second, stop):
        """Whether the access of thread `first` at position `start` is ordered before that of thread `second` at `stop`."""
        one, other = first >> THREAD_BITS, second >> THREAD_BITS
        if first == second or between(self.grid_barriers, start, stop):
            return True
        if one == other and self.together(first, start, second, stop):
            return True
        together = one == other or (one in self.clusters and self.clusters[one] == self.clusters.get(other))
        if together and between(self.acquired[other], start, stop):
            return True
        return self.released(first, start, other, second, stop, set())

    def ordered_lanes(self, first, start, second, stop):
        """Whether two threads of a block are lanes of one warp that both executed a syncwarp between the positions."""
        number, other = (serial & (1 << THREAD_BITS) - 1 for serial in (first, second))
        if number // WARP_SIZE != other // WARP_SIZE:
            return False
        positions, masks = self.warps[first >> THREAD_BITS, number // WARP_SIZE]
        both = 1 << number % WARP_SIZE | 1 << other % WARP_SIZE
        return any(masks[i] & both == both for i in range(bisect_right(positions, start), bisect_right(positions, stop)))

    def released(self, first, start, other, second, stop, seen):
        """Whether block `other` acquired before `stop`, directly or through further blocks, the access of `first` at `start`.

        second: the thread of that block that must see it; None for any. seen: releases that have been followed already.
        """
        one = first >> THREAD_BITS
        for position, address, count, taker in self.taken[other]:
            if position > stop:
                break
            if not self.together(taker, position, second, stop):
                continue
            for release in self.releases[address][:count]:
                same_gpu = self.gpus[release.block] == self.gpus[other]
                if release.fenced <= start or not (same_gpu or (release.system and taker is not None)):
                    continue
                if release.block == one and self.together(first, start, release.serial, release.fenced):
                    return True
                if (release, other) not in seen:
                    seen.add((release, other))
                    if self.released(first, start, release.block, release.serial, release.fenced, seen):
                        return True
        return False

    def together(self, first, start, second, stop):
        """Whether a thread's access at `start` is before that of another thread of its block at `stop`; True if either is None."""
        if first is None or second is None or first == second:
            return True
        return between(self.barriers[first >> THREAD_BITS], start, stop) or self.ordered_lanes(first, start, second, stop)


def between(positions, start, stop):
    """Whether a sorted list has a position after `start` and up to `stop`."""
    found = bisect_left(positions, start + 1)
    return found < len(positions) and positions[found] <= stop
