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
    """What happened to a granule of memory in an epoch: the last write, reads and atomic changes, as (clock, code, offset, kind)."""

    __slots__ = ("epoch", "writer", "write", "reads", "atomics")

    def __init__(self, epoch):
        self.epoch = epoch
        self.writer, self.write = None, None
        self.reads, self.atomics = {}, {}  # by thread number

    def copy(self):
        """The same, for a part of the granule."""
        twin = Cell(self.epoch)
        twin.writer, twin.write = self.writer, self.write
        twin.reads, twin.atomics = dict(self.reads), dict(self.atomics)
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

    spaces = ("shared",)

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

    def asynchronous(self, thread, event, array, start_byte, byte_count, frame):
        if array.space == "shared" and event in ("cp_async", "bulk"):
            self.access(thread, array, start_byte, byte_count, "write", frame)

    def access(self, thread, array, start_byte, byte_count, kind, frame):
        """Compare an access with those before it, and remember it. Those of a cluster's other blocks are not followed."""
        history = array.root.notes["history"]
        if thread.block is not history.block:
            return
        while (start_byte | byte_count) & (history.granule - 1):
            history.refine(history.granule // 2)
        granule, epoch, number, cells = history.granule, history.epoch, thread.number, history.cells
        stamp = history.clocks[number], frame.f_code, frame.f_lasti, kind
        for key in range(start_byte // granule, (start_byte + byte_count) // granule):
            cell = cells.get(key)
            if cell is None or cell.epoch != epoch:
                cell = cells[key] = Cell(epoch)
            elif cell.writer is not None and cell.writer != number and not history.ordered(cell.writer, cell.write[0], thread):
                self.report(thread, key * granule, kind, cell.writer, cell.write)
            if kind == "read":
                if cell.atomics:
                    self.compare(thread, key * granule, kind, history, cell.atomics)
                cell.reads[number] = stamp
                continue
            if cell.reads:
                self.compare(thread, key * granule, kind, history, cell.reads)
            if kind == "atomic":
                cell.atomics[number] = stamp
                continue
            if cell.atomics:
                self.compare(thread, key * granule, kind, history, cell.atomics)
            cell.writer, cell.write = number, stamp

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
