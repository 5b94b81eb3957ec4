"""Races on shared memory between fibres: accesses of many threads at once, compared by the clocks of detectors/races.py.

For each granule of memory the last writer is kept, and of each warp the last read and the last atomic with its lane, or SEVERAL. So an
access is compared with a few vectors. This is a filter: what may be a race sends the launch to the threads.
"""

import numpy as np

from minllm.sim.detectors.races import BlockHistory, SharedMemoryRaces
from minllm.sim.detectors.transfers import CHUNKS, CONFLICTING
from minllm.sim.lanes.faults import Fault
from minllm.sim.machine import SHARED_MEMORY_BYTES
from minllm.sim.thread import WARP_SIZE
from minllm.sim.transfer import CHUNK

SEVERAL = WARP_SIZE


class Readers:
    """Reads, or atomics. For each granule and warp: one more than the epoch of the last, 0 for none; its clock and its lane."""

    def __init__(self, granules, warps):
        self.when, self.clock = (np.zeros((granules, warps), np.int32) for _ in range(2))
        self.lane = np.zeros((granules, warps), np.int8)

    def split(self, parts):
        self.when, self.clock, self.lane = (np.repeat(one, parts, 0) for one in (self.when, self.clock, self.lane))

    def note(self, at, threads, clocks, now):
        """Add an access of each of `threads` to a granule."""
        place, own = (at, threads // WARP_SIZE), threads % WARP_SIZE
        before = self.when[place] == now
        lane = np.where(before & (self.lane[place] != own), SEVERAL, own)
        self.lane[place] = lane
        shared = (self.lane[place] != own) | (lane == SEVERAL)
        if shared.any():
            self.lane[place[0][shared], place[1][shared]] = SEVERAL
        self.when[place], self.clock[place] = now, clocks

    def unordered(self, history, at, threads, now):
        """Whether one of these accesses is not ordered before the access of each of `threads` to its granule."""
        found = self.when[at] == now
        if not found.any():
            return False
        number, warp = np.nonzero(found)
        at, thread = at[number], threads[number]
        clock, lane = self.clock[at, warp], self.lane[at, warp]
        other = warp * WARP_SIZE + np.where(lane == SEVERAL, thread % WARP_SIZE, lane)
        one = lane != SEVERAL
        if (one & (other != thread) & ~history.before(other, clock, thread)).any():
            return True
        (many,) = np.nonzero(~one)
        return bool(many.size) and not history.warps_before(warp[many], clock[many], thread[many])


class VectorHistory(BlockHistory):
    """Accesses to a block's shared memory since its last barrier."""

    def __init__(self, block):
        super().__init__(block)
        self.clocks = np.ones(len(block.threads), np.int64)
        self.warps, granules = len(block.warps), SHARED_MEMORY_BYTES // self.granule
        self.written, self.writer, self.write_clock = (np.zeros(granules, np.int32) for _ in range(3))
        self.reads, self.atomics = Readers(granules, self.warps), None

    def refine(self, granule):
        parts = self.granule // granule
        self.written, self.writer, self.write_clock = (np.repeat(one, parts) for one in (self.written, self.writer, self.write_clock))
        for one in (self.reads, self.atomics):
            if one is not None:
                one.split(parts)
        self.granule = granule

    def touched(self):
        last = np.maximum(self.written, self.reads.when.max(1))
        if self.atomics is not None:
            last = np.maximum(last, self.atomics.when.max(1))
        return last.reshape(CHUNKS, -1).max(1) - 1

    def before(self, others, clocks, threads):
        """For each access of `others` at `clocks` in this epoch, whether it is ordered before the thread beside it."""
        if self.known is not None:
            return clocks < self.known[threads, others]
        return (others // WARP_SIZE == threads // WARP_SIZE) & (clocks < self.clocks[threads])

    def warps_before(self, warps, clocks, threads):
        """Whether all accesses of these warps at `clocks` are ordered before the threads beside them."""
        lanes = np.minimum(warps[:, None] * WARP_SIZE + np.arange(WARP_SIZE), self.clocks.size - 1)
        others = lanes.reshape(-1)
        threads = np.repeat(threads, WARP_SIZE)
        return bool((self.before(others, np.repeat(clocks, WARP_SIZE), threads) | (others == threads)).all())

    def access(self, threads, start, size, kind):
        """Compare an access of each of `threads` to `size` bytes from `start` on with earlier ones, and record it."""
        if self.transfers is not None:
            self.compare_transfers(threads, start, size, kind)
        while size & (self.granule - 1):
            self.refine(self.granule // 2)
        at, pieces = start // self.granule, size // self.granule
        if pieces > 1:
            at, threads = (at[:, None] + np.arange(pieces)).reshape(-1), np.repeat(threads, pieces)
        self.compare_granules(threads, at, kind)
        clocks, now = self.clocks[threads], self.epoch + 1
        if kind == "write":
            self.written[at], self.writer[at], self.write_clock[at] = now, threads, clocks
            if (self.writer[at] != threads).any():
                raise Fault("two threads store to the same shared memory")
        elif kind == "read":
            self.reads.note(at, threads, clocks, now)
        else:
            if self.atomics is None:
                self.atomics = Readers(self.written.size, self.warps)
            self.atomics.note(at, threads, clocks, now)

    def compare_granules(self, threads, at, kind):
        """Raise Fault if an access of each of `threads` to a granule may race."""
        now = self.epoch + 1
        other = self.writer[at]
        found = (self.written[at] == now) & (other != threads)
        if found.any() and (found & ~self.before(other, self.write_clock[at], threads)).any():
            raise Fault("a race on shared memory")
        readers = (self.reads if kind != "read" else None, self.atomics if kind != "atomic" else None)
        if any(one is not None and one.unordered(self, at, threads, now) for one in readers):
            raise Fault("a race on shared memory")

    def compare_chunks(self, thread, who, chunks, kind):
        parts = CHUNK // self.granule
        at = (chunks[:, None] * parts + np.arange(parts)).reshape(-1)
        self.compare_granules(np.full(at.size, thread.number), at, kind)

    def compare_transfers(self, threads, start, size, kind):
        """Raise Fault if an access of each of `threads` may race with a transfer."""
        transfers, chunks = self.transfers, start // CHUNK
        transfers.touched[chunks] = self.epoch
        if any(transfers.counts[other][chunks].any() for other in CONFLICTING[kind]):
            raise Fault("an access to memory of a transfer that nobody has waited for")
        ended = transfers.ended[chunks] == self.epoch
        if not ended.any():
            return
        threads, chunks = threads[ended], chunks[ended]
        for unit in transfers.units.values():
            column = len(self.clocks) + unit.number
            known = self.settled[unit.number] if self.known is None else self.known[threads, column]
            if any((unit.last[other][chunks] > known).any() for other in CONFLICTING[kind]):
                raise Fault("an access to memory of a transfer of which nothing tells the thread that it is done")


class VectorRaces(SharedMemoryRaces):
    """SharedMemoryRaces over VectorHistory; its accesses come as vectors."""

    history = VectorHistory
