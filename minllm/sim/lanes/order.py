"""Races on shared memory between fibres: accesses of many threads at once, compared by the clocks of detectors/races.py.

For each granule of memory the last writer is kept, and of each warp the last read and the last atomic with its lane, or SEVERAL. So an
access is compared with a few vectors. This is a filter: what may be a race sends the launch to the threads.
"""

import numpy as np

from minllm.sim.detectors.clusters import WORD, ClusterHistory, ClusterRaces, Stamp, of_cluster
from minllm.sim.detectors.races import BlockHistory, SharedMemoryRaces
from minllm.sim.detectors.transfers import CHUNKS, CONFLICTING
from minllm.sim.lanes.faults import Fault
from minllm.sim.lanes.masks import some
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
        """Split each granule into parts."""
        self.when, self.clock, self.lane = (np.repeat(one, parts, 0) for one in (self.when, self.clock, self.lane))

    def note(self, history, at, threads, clocks, now):
        """Add an access of each of `threads` to a granule; it stands for those of its warp that are ordered before it."""
        place, own = (at, threads // WARP_SIZE), threads % WARP_SIZE
        others = (self.when[place] == now) & (self.lane[place] != own)
        if some(others):
            others[others] = ~self.ordered(history, at[others], place[1][others], threads[others])
        lane = np.where(others, SEVERAL, own)
        self.lane[place] = lane
        shared = (self.lane[place] != own) | (lane == SEVERAL)
        if some(shared):
            self.lane[place[0][shared], place[1][shared]] = SEVERAL
        self.when[place], self.clock[place] = now, clocks

    def ordered(self, history, at, warps, threads):
        """For each granule and warp, whether what is kept of the warp is ordered before the thread beside it."""
        clock, lane = self.clock[at, warps], self.lane[at, warps]
        other = warps * WARP_SIZE + lane % SEVERAL
        found = (other == threads) | history.before(other, clock, threads)
        (many,) = np.nonzero(lane == SEVERAL)
        found[many] = history.warps_before(warps[many], clock[many], threads[many])
        return found

    def unordered(self, history, at, threads, now):
        """Whether one of these accesses is not ordered before the access of each of `threads` to its granule."""
        number, warp = np.nonzero(self.when[at] == now)
        return bool(number.size) and not self.ordered(history, at[number], warp, threads[number]).all()


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
        kept = [self.written, self.reads.when, *([] if self.atomics is None else [self.atomics.when])]
        return np.max([times.reshape(CHUNKS, -1).max(1) for times in kept], axis=0) - 1

    def before(self, others, clocks, threads):
        """For each access of `others` at `clocks` in this epoch, whether it is ordered before the thread beside it."""
        if self.known is not None:
            return clocks < self.known[threads, others]
        return (others // WARP_SIZE == threads // WARP_SIZE) & (clocks < self.clocks[threads])

    def warps_before(self, warps, clocks, threads):
        """For each warp, whether all its accesses at the clock beside it are ordered before the thread beside it."""
        lanes = np.minimum(warps[:, None] * WARP_SIZE + np.arange(WARP_SIZE), self.clocks.size - 1)
        return (self.before(lanes, clocks[:, None], threads[:, None]) | (lanes == threads[:, None])).all(1)

    def release(self, threads, thing):
        """A release by each of several threads."""
        self.begin_vectors()
        own = np.isin(np.arange(self.clocks.size) // WARP_SIZE, threads // WARP_SIZE)
        self.clocks[own] += 1
        self.known[threads, threads] = self.clocks[threads]
        known, before = self.known[threads].max(0), self.released.get(thing)
        self.released[thing] = known if before is None else np.maximum(before, known)

    def acquire(self, threads, thing):
        """An acquire by each of several threads."""
        if thing in self.released:
            self.known[threads] = np.maximum(self.known[threads], self.released[thing])

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
            if some(self.writer[at] != threads):
                raise Fault("two threads store to the same shared memory")
        elif kind == "read":
            self.reads.note(self, at, threads, clocks, now)
        else:
            if self.atomics is None:
                self.atomics = Readers(self.written.size, self.warps)
            self.atomics.note(self, at, threads, clocks, now)

    def compare_granules(self, threads, at, kind):
        """Raise Fault if an access of each of `threads` to a granule may race."""
        now = self.epoch + 1
        other = self.writer[at]
        found = (self.written[at] == now) & (other != threads)
        if some(found) and some(found & ~self.before(other, self.write_clock[at], threads)):
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
        if any(some(transfers.counts[other][chunks]) for other in CONFLICTING[kind]):
            raise Fault("an access to memory of a transfer that nobody has waited for")
        ended = transfers.ended[chunks] == self.epoch
        if not some(ended):
            return
        threads, chunks = threads[ended], chunks[ended]
        for unit in transfers.units.values():
            column = len(self.clocks) + unit.number
            known = self.settled[unit.number] if self.known is None else self.known[threads, column]
            if any(some(unit.last[other][chunks] > known) for other in CONFLICTING[kind]):
                raise Fault("an access to memory of a transfer of which nothing tells the thread that it is done")


class OwnAccesses:
    """Of a block's words, the last store of a thread of the block and the last read of each of its warps: its time, 0 for none, and who."""

    def __init__(self, warps):
        words = SHARED_MEMORY_BYTES // WORD
        self.write_time, self.writer = np.zeros(words, np.int32), np.zeros(words, np.int32)
        self.read_time, self.reader = np.zeros((words, warps), np.int32), np.zeros((words, warps), np.int32)

    def unordered(self, words, known, kind):
        """Whether a thread of another block, with this row of clocks, may race with them if it accesses `words`, or one word."""
        late = (self.write_time[words] > 0) & (known[self.writer[words]] <= self.write_time[words])
        if kind != "read":
            late = late | ((self.read_time[words] > 0) & (known[self.reader[words]] <= self.read_time[words])).any(-1)
        return bool(some(late))


class VectorClusterHistory(ClusterHistory):
    """Accesses to the shared memory of a cluster's blocks. foreign: for each block, the words that other blocks have accessed."""

    def __init__(self, cluster):
        super().__init__(cluster)
        self.own = [OwnAccesses(len(block.warps)) for block in cluster.blocks]
        self.foreign = [np.zeros(SHARED_MEMORY_BYTES // WORD, bool) for _ in cluster.blocks]

    def conflict(self, block, word, stamp):
        if stamp.thread.block is not block and self.own[block.rank].unordered(word, self.order.known[stamp.number], stamp.kind):
            raise Fault("a race on shared memory of a cluster")
        return super().conflict(block, word, stamp)

    def add(self, block, word, stamp):
        super().add(block, word, stamp)
        self.foreign[block.rank][word] = True


class VectorClusterRaces(ClusterRaces):
    """ClusterRaces, with the accesses of a block's threads to their own memory as vectors."""

    history = VectorClusterHistory

    def access_together(self, block, threads, start, size, kind):
        """An access of each of several threads of a block to `size` bytes of its memory."""
        history = block.cluster.history
        words, numbers = start // WORD, threads + block.rank * history.threads
        if size > WORD:
            words, numbers = (words[:, None] + np.arange(size // WORD)).reshape(-1), np.repeat(numbers, size // WORD)
        (met,) = np.nonzero(history.foreign[block.rank][words])
        for word, number in zip(words[met].tolist(), numbers[met].tolist()):
            thread = block.threads[number - block.rank * history.threads]
            stamp = Stamp(thread, number, history.time, WORD * word, WORD * word + WORD, kind, None, 0)
            if history.conflict(block, word, stamp) is not None:
                raise Fault("a race on shared memory of a cluster")
        own = history.own[block.rank]
        if kind == "read":
            warps = (numbers - block.rank * history.threads) // WARP_SIZE
            own.read_time[words, warps], own.reader[words, warps] = history.time, numbers
        else:
            own.write_time[words], own.writer[words] = history.time, numbers

    def transfer_starts(self, transfer):
        thread, block = transfer.thread, transfer.block
        if thread.block is not block and transfer.kind == "write":
            history = block.cluster.history
            words = (transfer.chunks[:, None] * (CHUNK // WORD) + np.arange(CHUNK // WORD)).reshape(-1)
            if history.own[block.rank].unordered(words, history.order.known[history.number(thread)], "write"):
                raise Fault("a race on shared memory of a cluster")
        super().transfer_starts(transfer)

    def release_together(self, block, threads, thing):
        """A release by each of several threads of a block."""
        if block.cluster is not None:
            numbers, history = threads + block.rank * block.cluster.history.threads, block.cluster.history
            history.order.release_together(numbers, of_cluster(block.threads[0], thing), history.tick())
            self.arrive_together(block, threads, thing)

    def arrive_together(self, block, threads, thing):
        """A relaxed arrival of each of several threads of a block."""
        history = block.cluster.history
        history.passed.release_together(threads + block.rank * history.threads, of_cluster(block.threads[0], thing), history.tick())

    def acquire_together(self, block, threads, thing):
        """An acquire by each of several threads of a block."""
        if block.cluster is not None:
            history = block.cluster.history
            for clocks in (history.order, history.passed):
                clocks.acquire_together((threads + block.rank * history.threads).tolist(), of_cluster(block.threads[0], thing))


class VectorRaces(SharedMemoryRaces):
    """SharedMemoryRaces over VectorHistory; its accesses come as vectors."""

    history = VectorHistory
