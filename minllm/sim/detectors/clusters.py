"""Another block's shared memory: races between the blocks of a cluster, and accesses before a block has begun or after it may have ended.

A thread may access another block's shared memory once a barrier of the cluster, or an mbarrier, has shown that the block has begun, and
the block may end once one has shown that the access is done. Two accesses of different blocks, one of them a write, must be ordered by an
arrival with release after the first, and a wait for it before the second. Each thread knows, for every thread of its cluster, a time up to
which that thread's accesses are ordered before it (Lamport's happens-before, with vector clocks). races.py compares the threads of a block.
"""

import sys
from typing import Any, NamedTuple

import numpy as np

from minllm.errors import SimulationError
from minllm.sim.arrays import fail
from minllm.sim.detectors.transfers import CHUNKS, VERBS
from minllm.sim.detectors.waivers import waived
from minllm.sim.monitor import MEMORY_ORDERING, NO_MORE, Monitor
from minllm.sim.place import describe_instruction, kernel_frame
from minllm.sim.thread import WARP_SIZE
from minllm.sim.transfer import CHUNK

WORD = 4  # bytes per cell of the history
MEET = "a cluster's blocks meet at a barrier"


class Stamp(NamedTuple):
    """An access to shared memory: bytes start to stop at a time. number: the thread's in its cluster."""

    thread: Any
    number: int
    time: int
    start: int
    stop: int
    kind: str
    code: Any
    offset: int


class Clocks:
    """What threads know of each other. known[a][b]: what b did before this time is ordered before a. Rows are shared, never changed."""

    def __init__(self, count):
        self.known, self.released = [np.zeros(count, np.int32)] * count, {}

    def release(self, number, thing, time):
        row, before = self.known[number].copy(), self.released.get(thing)
        row[number] = time
        self.released[thing] = row if before is None else np.maximum(row, before)

    def acquire(self, number, thing):
        if thing in self.released:
            self.known[number] = np.maximum(self.known[number], self.released[thing])

    def release_together(self, numbers, thing, time):
        row, before = self.of(numbers).copy(), self.released.get(thing)
        row[numbers] = time
        self.released[thing] = row if before is None else np.maximum(row, before)

    def acquire_together(self, numbers, thing):
        made = {}
        for number in numbers if thing in self.released else ():
            row = self.known[number]
            if id(row) not in made:
                made[id(row)] = row, np.maximum(row, self.released[thing])
            self.known[number] = made[id(row)][1]

    def meet(self, numbers, time):
        """Order all that these threads know and did before what each of them does from now on."""
        row = self.of(numbers).copy()
        row[numbers] = time
        for number in numbers:
            self.known[number] = row

    def of(self, numbers):
        """What at least one of these threads knows."""
        return np.maximum.reduce(list({id(self.known[number]): self.known[number] for number in numbers}.values()))


class ClusterHistory:
    """The accesses of a cluster's threads. order: of their memory accesses; passed: of their instructions, relaxed arrivals included."""

    def __init__(self, cluster):
        self.threads = len(cluster.blocks[0].threads)
        self.order, self.passed = Clocks(self.threads * len(cluster.blocks)), Clocks(self.threads * len(cluster.blocks))
        self.time = 1
        self.writes = [{} for _ in cluster.blocks]  # for each block {word: Stamp}
        self.reads = [{} for _ in cluster.blocks]  # {word: {warp of the cluster: Stamp}}
        self.visits = [{} for _ in cluster.blocks]  # {thread's number: Stamp of its last access from another block}
        self.products = [{} for _ in cluster.blocks]  # {warpgroup's first thread: times at which its wgmmas had read each chunk}

    def number(self, thread):
        return thread.block.rank * self.threads + thread.number

    def tick(self):
        self.time += 1
        return self.time

    def ordered(self, stamp, number):
        """Whether an access is ordered before what a thread does now."""
        return self.order.known[number][stamp.number] > stamp.time

    def conflict(self, block, word, stamp):
        """An access of another block to a word that is not ordered before `stamp`; None if there is none."""
        others = [self.writes[block.rank].get(word)]
        if stamp.kind != "read":
            others += self.reads[block.rank].get(word, {}).values()
        for other in others:
            apart = other is None or other.thread.block is stamp.thread.block or other.start >= stamp.stop or stamp.start >= other.stop
            if not apart and not self.ordered(other, stamp.number):
                return other
        return None

    def add(self, block, word, stamp):
        if stamp.kind == "read":
            self.reads[block.rank].setdefault(word, {})[stamp.number // WARP_SIZE] = stamp
        else:
            self.writes[block.rank][word] = stamp
            self.reads[block.rank].pop(word, None)


class ClusterRaces(Monitor):
    """Raises SimulationError at the second of two accesses that race, and at those to a block that may not have begun or may have ended."""

    spaces = ("shared",)
    history = ClusterHistory

    def start_block(self, block):
        cluster = block.cluster
        if cluster is not None and cluster.history is None and all(one.threads for one in cluster.blocks):
            cluster.history = self.history(cluster)

    # What orders accesses

    def barrier(self, block, threads):
        self.meet(block, threads)

    def collective(self, warp, kind, lanes, mask, frame):
        if kind == MEMORY_ORDERING:
            self.meet(warp.threads[0].block, [warp.threads[lane] for lane in lanes])

    def meet(self, block, threads):
        if block.cluster is not None:
            history = block.cluster.history
            time, numbers = history.tick(), [history.number(thread) for thread in threads]
            history.order.meet(numbers, time)
            history.passed.meet(numbers, time)

    def release(self, thread, thing):
        if thread.block.cluster is not None:
            history = thread.block.cluster.history
            history.order.release(history.number(thread), of_cluster(thread, thing), history.tick())
            self.arrives(thread, thing)

    def arrives(self, thread, thing):
        history = thread.block.cluster.history
        history.passed.release(history.number(thread), of_cluster(thread, thing), history.tick())

    def acquire(self, thread, thing):
        if thread.block.cluster is not None:
            history = thread.block.cluster.history
            for clocks in (history.order, history.passed):
                clocks.acquire(history.number(thread), of_cluster(thread, thing))

    # Accesses

    def access(self, thread, array, start_byte, byte_count, kind, frame):
        cluster, block = thread.block.cluster, array.root.notes["history"].block
        if cluster is None:
            return NO_MORE
        history = cluster.history
        stamp = Stamp(thread, history.number(thread), history.time, start_byte, start_byte + byte_count, kind, frame.f_code, frame.f_lasti)
        for word in range(start_byte // WORD, (stamp.stop - 1) // WORD + 1):
            other = history.conflict(block, word, stamp)
            if other is not None:
                self.report(f"this thread {VERBS[kind]}", block, max(word * WORD, start_byte), other, stamp)
            history.add(block, word, stamp)
        return None

    def transfer_starts(self, transfer):
        thread, block = transfer.thread, transfer.block
        if thread.block is block or transfer.kind == "read":
            return
        history, who = block.cluster.history, f"{transfer.unit} that this thread starts writes"
        number, read = history.number(thread), history.reads[block.rank]
        for address in (int(chunk) * CHUNK + byte for chunk in transfer.chunks for byte in range(0, CHUNK, WORD)):
            if address // WORD in read or address // WORD in history.writes[block.rank]:
                stamp = Stamp(thread, number, history.time, address, address + WORD, "write", transfer.code, transfer.offset)
                other = history.conflict(block, address // WORD, stamp)
                if other is not None:
                    self.report(who, block, address, other, stamp)
        for first, times in history.products[block.rank].items():
            late = times[transfer.chunks] >= history.order.known[number][first : first + 128].max()
            unread = times[transfer.chunks] == 0
            if (late & ~unread).any():
                address = int(transfer.chunks[(late & ~unread).argmax()]) * CHUNK
                fail(f"race on shared memory of a cluster: {who} {name(block, address)}, which a wgmma of that block has read, {UNORDERED}")

    def transfer_ends(self, transfer, threads, thing):
        cluster = transfer.block.cluster
        if cluster is None:
            return
        history = cluster.history
        if transfer.unit == "wgmma":
            first = transfer.block.rank * history.threads + transfer.thread.number
            times = history.products[transfer.block.rank].setdefault(first, np.zeros(CHUNKS, np.int32))
            times[transfer.chunks] = history.time
        elif thing is not None:  # who waits for it knows that the copy is done
            self.arrives(transfer.thread, thing)

    def visits(self, thread, block):
        history, frame = block.cluster.history, kernel_frame(sys._getframe(1))
        number, first = history.number(thread), block.rank * history.threads
        if not history.passed.known[number][first : first + history.threads].any():
            fail(f"this thread accesses shared memory of {block}, which may not have begun: {MEET} first")
        stamp = Stamp(thread, number, history.time, 0, 0, "", frame.f_code, frame.f_lasti)
        history.visits[block.rank][number] = stamp

    def exits(self, block):
        if block.cluster is None:
            return
        history = block.cluster.history
        known = history.passed.of(range(block.rank * history.threads, (block.rank + 1) * history.threads))
        for number, stamp in history.visits[block.rank].items():
            if known[number] <= stamp.time:
                raise SimulationError(
                    f"this thread accesses shared memory of {block}, which may have ended: {MEET} after the last access "
                    f"({describe_instruction(stamp.code, stamp.offset)}, {stamp.thread.block}, thread {tuple(stamp.thread.index)})"
                )

    def report(self, who, block, address, other, stamp):
        """Raise SimulationError with both accesses, unless the race is waived."""
        if not waived("race", (other.code, other.offset), (stamp.code, stamp.offset)):
            fail(
                f"race on shared memory of a cluster: {who} {name(block, address)}, which thread {tuple(other.thread.index)} of "
                f"{other.thread.block} {VERBS[other.kind]} at {describe_instruction(other.code, other.offset)}, {UNORDERED}"
            )


UNORDERED = f"and nothing orders the two: {MEET}, with release and acquire, in between"


def name(block, address):
    """The element of a block's shared memory at an address, as text."""
    return f"{block.shared_name(address)} (address {address}) of {block}"


def of_cluster(thread, thing):
    """A thing that is released, such as an mbarrier's phase, for use in a cluster: named barriers are those of a block."""
    return (thread.block, thing) if type(thing[0]) is tuple else thing
