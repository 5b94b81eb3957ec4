"""Races in shared memory: two threads at the same byte, at least one writing, with nothing that orders one before the other.

What orders two threads: a block barrier; for lanes of a warp, a warp-wide instruction that both take part in; a release by one and an
acquire by the other (an mbarrier). Each thread has a clock that goes on at each of these; an access is stamped with the clock of the
thread, and another thread comes after it once it `knows` a later clock of that thread (Lamport's happens-before, with vector clocks).
Most kernels synchronise by whole warps and blocks only: then one clock a warp is enough, and no vectors are kept.
"""

import numpy as np

from minllm.sim.arrays import fail
from minllm.sim.machine import WARP_SIZE
from minllm.sim.monitor import Monitor
from minllm.sim.place import describe_instruction


class Cell:
    """The last write of a granule of memory, and the reads and atomic changes of an epoch: stamps of (clock, code, offset, kind)."""

    __slots__ = ("write_epoch", "writer", "write", "epoch", "reads", "atomics")

    def __init__(self):
        self.write_epoch, self.writer, self.write = -1, None, None
        self.epoch, self.reads, self.atomics = -1, {}, {}  # by thread number

    def copy(self):
        """The same, for a part of the granule."""
        twin = Cell()
        twin.write_epoch, twin.writer, twin.write = self.write_epoch, self.writer, self.write
        twin.epoch, twin.reads, twin.atomics = self.epoch, dict(self.reads), dict(self.atomics)
        return twin


class BlockHistory:
    """What has happened to a block's shared memory since its last barrier (an epoch lies between two barriers)."""

    def __init__(self, block):
        self.block = block
        self.epoch = 0
        self.granule = 4  # bytes: smaller once an access is
        self.cells = {}
        self.clocks = [1] * len(block.threads)
        self.known = None  # known[a][b]: thread a comes after all that b did before this clock; None as long as only warps synchronise
        self.released = {}

    def refine(self, granule):
        """Keep books of smaller granules from now on."""
        parts = self.granule // granule
        self.cells = {key * parts + i: cell.copy() for key, cell in self.cells.items() for i in range(parts)}
        self.granule = granule

    def begin_vectors(self):
        """Keep vector clocks from now on. So far lanes of a warp know of each other's last common instruction."""
        if self.known is None:
            count = len(self.clocks)
            warps = np.arange(count) // WARP_SIZE
            self.known = np.where(warps[:, None] == warps[None, :], np.array(self.clocks)[None, :], 0)

    def new_epoch(self):
        """A barrier: all comes after all that was before."""
        self.epoch += 1
        self.known = None
        self.released.clear()

    def ordered(self, other, clock, thread):
        """Whether `thread` comes after what thread number `other` did at `clock` in this epoch."""
        if other == thread.number:
            return True
        if self.known is not None:
            return clock < self.known[thread.number, other]
        return other // WARP_SIZE == thread.number // WARP_SIZE and clock < self.clocks[thread.number]


class SharedMemoryRaces(Monitor):
    """Raises SimulationError at the second of two accesses that race."""

    def start_block(self, block):
        block.shared_root.notes["history"] = BlockHistory(block)

    def end_block(self, block):
        block.shared_root.notes.pop("history", None)

    def barrier(self, block, threads):
        block.shared_root.notes["history"].new_epoch()

    def collective(self, warp, kind, lanes, mask, frame):
        history = warp.threads[0].block.shared_root.notes["history"]
        clocks, first = history.clocks, warp.number * WARP_SIZE
        if len(lanes) == len(warp.threads):
            clock = clocks[first] + 1
            clocks[first : first + len(lanes)] = [clock] * len(lanes)
            if history.known is None:
                return
        else:
            history.begin_vectors()
            # All lanes keep one clock, so that those of the warp stay comparable; only the lanes that met learn of it.
            clock = clocks[first] + 1
            clocks[first : first + len(warp.threads)] = [clock] * len(warp.threads)
        numbers = [first + lane for lane in lanes]
        known = history.known[numbers].max(0)
        known[numbers] = clock
        history.known[numbers] = known

    def release(self, thread, thing):
        history = thread.block.shared_root.notes["history"]
        history.begin_vectors()
        first = thread.warp.number * WARP_SIZE
        clock = history.clocks[first] + 1
        history.clocks[first : first + len(thread.warp.threads)] = [clock] * len(thread.warp.threads)
        history.known[thread.number, thread.number] = clock
        known, before = history.known[thread.number].copy(), history.released.get(thing)
        history.released[thing] = known if before is None else np.maximum(before, known)

    def acquire(self, thread, thing):
        history = thread.block.shared_root.notes["history"]
        if thing in history.released:
            known = history.known[thread.number]
            np.maximum(known, history.released[thing], out=known)

    def access(self, thread, array, start_byte, byte_count, kind, frame):
        if array.space == "shared":
            self.look(thread, array, start_byte, byte_count, kind, frame)

    def asynchronous(self, thread, event, array, start_byte, byte_count, frame):
        if array.space == "shared" and event in ("cp_async", "bulk"):
            self.look(thread, array, start_byte, byte_count, "write", frame)

    def look(self, thread, array, start_byte, byte_count, kind, frame):
        """Compare an access with those before it, and remember it. Those of a cluster's other blocks are not followed."""
        history = array.root.notes["history"]
        if thread.block is not history.block:
            return
        granule, epoch, number = history.granule, history.epoch, thread.number
        while start_byte % granule or byte_count % granule:
            granule //= 2
        if granule != history.granule:
            history.refine(granule)
        stamp = history.clocks[number], frame.f_code, frame.f_lasti, kind
        cells = history.cells
        for key in range(start_byte // granule, (start_byte + byte_count) // granule):
            cell = cells.get(key)
            if cell is None:
                cell = cells[key] = Cell()
            if cell.write_epoch == epoch and cell.writer != number and not history.ordered(cell.writer, cell.write[0], thread):
                self.report(thread, key * granule, kind, cell.writer, cell.write)
            if cell.epoch != epoch:
                cell.epoch, cell.reads, cell.atomics = epoch, {}, {}
            if kind != "read":
                self.compare(thread, key * granule, kind, history, cell.reads)
            if kind != "atomic":
                self.compare(thread, key * granule, kind, history, cell.atomics)
            if kind == "write":
                cell.write_epoch, cell.writer, cell.write = epoch, number, stamp
            else:
                (cell.reads if kind == "read" else cell.atomics)[number] = stamp

    def compare(self, thread, address, kind, history, accesses):
        """Report the first of the accesses, by thread number, that nothing orders before this one."""
        for other, stamp in accesses.items():
            if other != thread.number and not history.ordered(other, stamp[0], thread):
                self.report(thread, address, kind, other, stamp)

    def report(self, thread, address, kind, other_number, other):
        """Name both threads, both places, and the memory."""
        verbs = {"read": "reads", "write": "writes", "atomic": "changes"}
        _, code, offset, other_kind = other
        other_thread = thread.block.threads[other_number]
        fail(
            f"race on shared memory: this thread {verbs[kind]} {thread.block.shared_name(address)} (address {address}), which thread "
            f"{tuple(other_thread.index)} {verbs[other_kind]} at {describe_instruction(code, offset)}, and nothing orders the two"
        )
