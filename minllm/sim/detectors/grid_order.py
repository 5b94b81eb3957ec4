"""What orders the accesses of a grid's threads to global memory.

Every access and every synchronisation has a position in one sequence, the order in which the simulator executes them. Of two accesses by
different threads the first is ordered before the second if between them

- their block passed a block barrier, or the whole grid a grid barrier;
- as lanes of one warp, both executed a syncwarp;
- their block, or their cluster, acquired what another thread released: an mbarrier, a named barrier, a cluster's barrier;
- the first thread's block executed a fence and then an atomic, and the second thread's block an atomic on the same address after that.

The last two look at blocks instead of threads: they can take two accesses for ordered that are not, but not the other way round.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from typing import NamedTuple

from minllm.sim.thread import WARP_SIZE

THREAD_BITS = 10  # a block has at most 1,024 threads


class Release(NamedTuple):
    """An atomic after a fence: what `block` did before `fenced` is visible after an atomic on the same address."""

    block: int
    fenced: int


class GridOrder:
    """Positions of synchronisations. A thread's `serial` is its block's number << THREAD_BITS | its own."""

    def __init__(self):
        self.barriers = defaultdict(list)  # block -> positions
        self.grid_barriers = []
        self.warps = defaultdict(lambda: ([], []))  # (block, warp) -> (positions, masks of lanes)
        self.acquired = defaultdict(list)  # block -> positions of acquires
        self.clusters = {}  # block -> number of its cluster
        self.fences = {}  # (block, whether other blocks see it) -> position of the last one
        self.releases = defaultdict(list)  # address -> [Release]
        self.taken = defaultdict(list)  # block -> [(position, address, releases at that time)]

    def atomic(self, block, address, position):
        """An atomic of a block: it sees what was released at this address, and releases what the block did before its last fence."""
        releases = self.releases[address]
        self.taken[block].append((position, address, len(releases)))
        fence = self.fences.get(block)
        if fence is not None and Release(block, fence) not in releases[-1:]:
            releases.append(Release(block, fence))

    def ordered(self, first, start, second, stop):
        """Whether what thread `first` did at position `start` is before what thread `second` does at `stop`."""
        one, other = first >> THREAD_BITS, second >> THREAD_BITS
        if first == second or between(self.grid_barriers, start, stop):
            return True
        if one == other and (between(self.barriers[one], start, stop) or self.ordered_lanes(first, start, second, stop)):
            return True
        together = one == other or (one in self.clusters and self.clusters[one] == self.clusters.get(other))
        if together and between(self.acquired[other], start, stop):
            return True
        return self.released(one, start, other, stop, set())

    def ordered_lanes(self, first, start, second, stop):
        """Whether two threads of a block are lanes of one warp that both executed a syncwarp in between."""
        number, other = (serial & (1 << THREAD_BITS) - 1 for serial in (first, second))
        if number // WARP_SIZE != other // WARP_SIZE:
            return False
        positions, masks = self.warps[first >> THREAD_BITS, number // WARP_SIZE]
        both = 1 << number % WARP_SIZE | 1 << other % WARP_SIZE
        return any(masks[i] & both == both for i in range(bisect_right(positions, start), bisect_right(positions, stop)))

    def released(self, one, start, other, stop, seen):
        """Whether block `other` took, directly or through further blocks, what block `one` released after `start`."""
        for position, address, count in self.taken[other]:
            if position > stop:
                break
            for release in self.releases[address][:count]:
                if release.block == one and release.fenced > start:
                    return True
                if release not in seen and release.fenced > start:
                    seen.add(release)
                    if self.released(one, start, release.block, release.fenced, seen):
                        return True
        return False


def between(positions, start, stop):
    """Whether a sorted list has a position after `start` and up to `stop`."""
    found = bisect_left(positions, start + 1)
    return found < len(positions) and positions[found] <= stop
