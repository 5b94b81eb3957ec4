"""Data races in shared memory: two unordered accesses, at least one a write.

Two threads are ordered by a block barrier; as lanes of a warp, by a syncwarp that both execute (shuffles, votes and matrix instructions
order no memory accesses); by a release of one and an acquire of the other (an mbarrier). Each of these advances a thread's clock. An access
is stamped with the clock of its thread, and a thread that `knows` a later clock of that thread comes after the access (Lamport's
happens-before, with vector clocks). Most kernels synchronise by whole warps and blocks only: then one clock per warp is enough, and no
vectors are kept. Asynchronous transfers have clocks of their own: transfers.py.
"""

import sys

import numpy as np

from minllm.sim.arrays import fail
from minllm.sim.detectors.transfers import THIS_THREAD, VERBS, Transfers
from minllm.sim.detectors.waivers import waived, waived_frame
from minllm.sim.monitor import MEMORY_ORDERING, Monitor
from minllm.sim.place import describe_instruction, kernel_frame
from minllm.sim.thread import WARP_SIZE


class Cell:
    """Accesses to a granule in an epoch, each (clock, code, offset, kind)."""

    __slots__ = ("epoch", "writer", "write", "reads", "atomics")

    def __init__(self, epoch):
        self.epoch = epoch
        self.writer, self.write = None, None
        self.reads, self.atomics = {}, {}  # by thread number

    def forget(self, epoch):
        """Begin a new epoch."""
        self.epoch = epoch
        self.writer = self.write = None
        if self.reads:
            self.reads = {}
        if self.atomics:
            self.atomics = {}

    def copy(self):
        """The same history, for a part of the granule."""
        twin = Cell(self.epoch)
        twin.writer, twin.write = self.writer, self.write
        twin.reads, twin.atomics = dict(self.reads), dict(self.atomics)
        return twin


class BlockHistory:
    """Accesses to a block's shared memory since its last barrier; an epoch is the time between two barriers."""

    def __init__(self, block):
        self.block = block
        self.epoch = 0
        self.granule = 4  # bytes; smaller once an access is smaller
        self.cells = {}
        self.clocks = [1] * len(block.threads)
        self.known = None  # known[a][b]: thread a comes after what b did before this clock; None while only whole warps synchronise
        self.released = {}
        # After the threads' columns, `known` has one per unit that transfers. settled: their clocks at the last barrier.
        self.transfers, self.settled = None, np.zeros(0, np.int64)

    def refine(self, granule):
        """Track smaller granules from now on."""
        parts = self.granule // granule
        self.cells = {key * parts + i: cell.copy() for key, cell in self.cells.items() for i in range(parts)}
        self.granule = granule

    def begin_vectors(self):
        """Keep vector clocks from now on, instead of one clock per warp."""
        if self.known is None:
            count = len(self.clocks)
            warps = np.arange(count) // WARP_SIZE
            threads = np.where(warps[:, None] == warps[None, :], np.array(self.clocks)[None, :], 0)
            self.known = np.hstack([threads, np.broadcast_to(self.settled, (count, self.settled.size))])

    def new_epoch(self):
        """A barrier: everything after it is ordered after everything before it."""
        self.epoch += 1
        if self.known is not None:
            self.settled = self.known[:, len(self.clocks) :].max(0)
        self.known = None
        self.released.clear()

    def widen(self, units):
        """Make room for the clocks of `units` units."""
        missing = units - self.settled.size
        if missing > 0:
            self.settled = np.pad(self.settled, (0, missing))
            if self.known is not None:
                self.known = np.pad(self.known, ((0, 0), (0, missing)))
                self.released = {thing: np.pad(known, (0, missing)) for thing, known in self.released.items()}

    def tell(self, unit, clock, threads, thing):
        """These threads know what a unit did up to a clock, and threads that acquire `thing` will."""
        self.begin_vectors()
        column = len(self.clocks) + unit
        for thread in threads:
            self.known[thread.number, column] = clock
        if thing is not None:
            known = self.released.setdefault(thing, np.zeros(self.known.shape[1], self.known.dtype))
            known[column] = clock

    def knows(self, thread, unit):
        """The clock up to which a thread comes after what a unit did."""
        return self.settled[unit] if self.known is None else self.known[thread.number, len(self.clocks) + unit]

    def ordered(self, other, clock, thread):
        """Whether `thread` comes after what thread number `other` did at `clock` in this epoch."""
        if other == thread.number:
            return True
        if self.known is not None:
            return clock < self.known[thread.number, other]
        return other // WARP_SIZE == thread.number // WARP_SIZE and clock < self.clocks[thread.number]

    def compare(self, thread, who, address, cell, kind):
        """Report the first conflicting access to a cell that is not ordered before this one."""
        number = thread.number
        if cell.writer is not None and cell.writer != number and not self.ordered(cell.writer, cell.write[0], thread):
            self.report(thread, who, address, cell.writer, cell.write)
        if kind != "read":
            self.compare_all(thread, who, address, cell.reads)
        if kind != "atomic":
            self.compare_all(thread, who, address, cell.atomics)

    def compare_all(self, thread, who, address, accesses):
        """Report the first of `accesses` ({thread number: stamp}) that is not ordered before this one."""
        for other, stamp in accesses.items():
            if other != thread.number and not self.ordered(other, stamp[0], thread):
                self.report(thread, who, address, other, stamp)

    def compare_cells(self, thread, who, start_byte, byte_count, kind):
        """Compare an access with several cells, without recording it."""
        for key in range(start_byte // self.granule, (start_byte + byte_count) // self.granule):
            cell = self.cells.get(key)
            if cell is not None and cell.epoch == self.epoch:
                self.compare(thread, who, key * self.granule, cell, kind)

    def report(self, thread, who, address, other_number, other):
        """Name both threads, both places, and the memory."""
        _, code, offset, other_kind = other
        frame = kernel_frame(sys._getframe(1))
        if waived("race", (code, offset)) or waived_frame("race", frame):
            return
        other_thread = self.block.threads[other_number]
        fail(
            f"race on shared memory: {who} {self.block.shared_name(address)} (address {address}), which thread "
            f"{tuple(other_thread.index)} {VERBS[other_kind]} at {describe_instruction(code, offset)}, and nothing orders the two"
        )


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
        if kind != MEMORY_ORDERING:
            return
        history = warp.threads[0].block.shared_root.notes["history"]
        clocks, first = history.clocks, warp.number * WARP_SIZE
        if len(lanes) == len(warp.threads):
            clock = clocks[first] + 1
            clocks[first : first + len(lanes)] = [clock] * len(lanes)
            if history.known is None:
                return
        else:
            history.begin_vectors()
            # All lanes of the warp have the same clock; only the lanes of this instruction know the new one.
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
        if event == "cp_async":
            self.access(thread, array, start_byte, byte_count, "write", frame)

    def transfer_starts(self, transfer):
        history = transfer.block.shared_root.notes["history"]
        if history.transfers is None:
            history.transfers = Transfers(history)
        # The accesses of a cp.async at its start and at its end have been compared already.
        history.transfers.begin(transfer) if transfer.unit == "cp.async" else history.transfers.start(transfer)

    def transfer_ends(self, transfer, threads, thing):
        history = transfer.block.shared_root.notes.get("history")
        if history is not None:
            history.transfers.leave(transfer) if transfer.unit == "cp.async" else history.transfers.end(transfer, threads, thing)

    def access(self, thread, array, start_byte, byte_count, kind, frame):
        """Compare an access with earlier ones, and record it, unless another block makes it."""
        history = array.root.notes["history"]
        if thread.block is not history.block:
            return
        if history.transfers is not None:
            history.transfers.access(thread, start_byte, byte_count, kind)
        while (start_byte | byte_count) & (history.granule - 1):
            history.refine(history.granule // 2)
        granule, epoch, number, cells = history.granule, history.epoch, thread.number, history.cells
        stamp, who = (history.clocks[number], frame.f_code, frame.f_lasti, kind), THIS_THREAD[kind]
        for key in range(start_byte // granule, (start_byte + byte_count) // granule):
            cell = cells.get(key)
            if cell is None:
                cell = cells[key] = Cell(epoch)
            elif cell.epoch != epoch:
                cell.forget(epoch)
            else:
                history.compare(thread, who, key * granule, cell, kind)
            if kind == "read":
                cell.reads[number] = stamp
            elif kind == "atomic":
                cell.atomics[number] = stamp
            else:
                cell.writer, cell.write = number, stamp
