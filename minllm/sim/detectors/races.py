"""Data races in shared memory: two unordered accesses, at least one a write.

Two threads are ordered by a block barrier; as lanes of a warp, by a syncwarp that both execute (shuffles, votes and matrix instructions
order no memory accesses); by a release of one and an acquire of the other (an mbarrier). Each of these advances a thread's clock. An access
is stamped with its thread's clock, and is ordered before another thread if that thread's vector clock has a later entry for the first
(Lamport's happens-before, with vector clocks). Most kernels synchronise by whole warps and blocks only: then one clock per warp is enough,
and no vectors are kept. Asynchronous transfers have clocks of their own: transfers.py.
"""

import sys

import numpy as np

from minllm.sim.arrays import fail
from minllm.sim.detectors.transfers import THIS_THREAD, VERBS, Transfers
from minllm.sim.detectors.waivers import waived, waived_frame
from minllm.sim.machine import SHARED_MEMORY_BYTES
from minllm.sim.monitor import MEMORY_ORDERING, Monitor
from minllm.sim.place import describe_instruction, kernel_frame
from minllm.sim.thread import WARP_SIZE
from minllm.sim.transfer import CHUNK


class Cell:
    """The accesses to a granule in an epoch; an access is a stamp (clock, code, offset, kind)."""

    __slots__ = ("epoch", "writer", "write", "reads", "atomics")

    def __init__(self, epoch):
        self.epoch = epoch
        self.writer, self.write = None, None
        self.reads, self.atomics = {}, {}  # thread number -> stamp of its last access

    def forget(self, epoch):
        """Drop all accesses, because a new epoch begins."""
        self.epoch = epoch
        self.writer = self.write = None
        if self.reads:
            self.reads = {}
        if self.atomics:
            self.atomics = {}

    def copy(self):
        """A copy of this cell, for a part of the granule."""
        twin = Cell(self.epoch)
        twin.writer, twin.write = self.writer, self.write
        twin.reads, twin.atomics = dict(self.reads), dict(self.atomics)
        return twin


class BlockHistory:
    """Accesses to a block's shared memory since its last barrier; an epoch is the time between two barriers."""

    def __init__(self, block):
        self.block = block
        self.epoch = 0
        self.granule = 4  # bytes per cell; halved when an access is smaller or not aligned to it
        self.cells = {}
        self.clocks = [1] * len(block.threads)
        self.known = None  # known[a][b]: accesses of b before this clock are ordered before a; None while only whole warps synchronise
        self.released = {}
        self.mbarriers = {}  # {address: (epoch, thread number, stamp) of its initialisation}
        # After the threads' columns, `known` has one column per transferring unit. settled: the units' clocks at the last barrier.
        self.transfers, self.settled = None, np.zeros(0, np.int64)

    def refine(self, granule):
        """Split all cells into cells of a smaller granule, in bytes."""
        parts = self.granule // granule
        self.cells = {key * parts + i: cell.copy() for key, cell in self.cells.items() for i in range(parts)}
        self.granule = granule

    def touched(self):
        """For each chunk the last epoch in which a thread accessed it, or -1."""
        found = np.full(SHARED_MEMORY_BYTES // CHUNK, -1, np.int32)
        for key, cell in self.cells.items():
            found[key * self.granule // CHUNK] = max(cell.epoch, found[key * self.granule // CHUNK])
        return found

    def begin_vectors(self):
        """Keep vector clocks from now on, instead of one clock per warp."""
        if self.known is None:
            count = len(self.clocks)
            warps = np.arange(count) // WARP_SIZE
            threads = np.where(warps[:, None] == warps[None, :], np.array(self.clocks)[None, :], 0)
            self.known = np.hstack([threads, np.broadcast_to(self.settled, (count, self.settled.size))])

    def new_epoch(self):
        """Record a block barrier: everything after it is ordered after everything before it."""
        self.epoch += 1
        if self.known is not None:
            self.settled = self.known[:, len(self.clocks) :].max(0)
        self.known = None
        self.released.clear()

    def widen(self, units):
        """Add columns until there is one per unit; units: their number."""
        missing = units - self.settled.size
        if missing > 0:
            self.settled = with_columns(self.settled, missing)
            if self.known is not None:
                self.known = with_columns(self.known, missing)
                self.released = {thing: with_columns(known, missing) for thing, known in self.released.items()}

    def tell(self, unit, clock, threads, thing):
        """Order a unit's transfers up to a clock before these threads, and before threads that will acquire `thing`."""
        self.begin_vectors()
        column = len(self.clocks) + unit
        for thread in threads:
            self.known[thread.number, column] = clock
        if thing is not None:
            known = self.released.setdefault(thing, np.zeros(self.known.shape[1], self.known.dtype))
            known[column] = clock

    def knows(self, thread, unit):
        """The clock up to which a unit's transfers are ordered before a thread."""
        return self.settled[unit] if self.known is None else self.known[thread.number, len(self.clocks) + unit]

    def ordered(self, other, clock, thread):
        """Whether the access of thread number `other` at `clock` in this epoch is ordered before `thread`."""
        if other == thread.number:
            return True
        if self.known is not None:
            return clock < self.known[thread.number, other]
        return other // WARP_SIZE == thread.number // WARP_SIZE and clock < self.clocks[thread.number]

    def compare(self, thread, who, address, cell, kind):
        """Report the first conflicting access to a cell that is not ordered before this one. who: the subject of the message."""
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

    def compare_chunks(self, thread, who, chunks, kind):
        """Compare an access of a thread to whole chunks, without recording it."""
        for chunk in chunks:
            self.compare_cells(thread, who, int(chunk) * CHUNK, CHUNK, kind)

    def report(self, thread, who, address, other_number, other):
        """Raise SimulationError with both threads, both lines and the memory, unless the race is waived."""
        _, code, offset, other_kind = other
        frame = kernel_frame(sys._getframe(1))
        if waived("race", (code, offset)) or waived_frame("race", frame):
            return
        other_thread = self.block.threads[other_number]
        fail(
            f"race on shared memory: {who} {self.block.shared_name(address)} (address {address}), which thread "
            f"{tuple(other_thread.index)} {VERBS[other_kind]} at {describe_instruction(code, offset)}, and nothing orders the two"
        )


def with_columns(clocks, count):
    """A vector or matrix of clocks with this number of columns of zeros more; np.pad takes several times as long."""
    return np.concatenate((clocks, np.zeros((*clocks.shape[:-1], count), clocks.dtype)), axis=-1)


class SharedMemoryRaces(Monitor):
    """Raises SimulationError at the second of two accesses that race."""

    spaces = ("shared",)
    history = BlockHistory

    def start_block(self, block):
        block.shared_root.notes["history"] = self.history(block)

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
            # All lanes of a warp have the same clock, but only the lanes of this instruction get the new one in their vectors.
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

    def uses_mbarrier(self, thread, offset, initialises):
        """Raise SimulationError if nothing orders the initialisation before a use by another thread."""
        history = thread.block.shared_root.notes["history"]
        if initialises:
            frame = kernel_frame(sys._getframe(1))
            stamp = int(history.clocks[thread.number]), frame.f_code, frame.f_lasti, "write"
            history.mbarriers[offset] = history.epoch, thread.number, stamp
            return
        epoch, number, stamp = history.mbarriers.get(offset, (None, None, None))
        if epoch == history.epoch and not history.ordered(number, stamp[0], thread):
            history.report(thread, "this thread uses the mbarrier", offset, number, stamp)

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
        """Compare an access with earlier ones, and record it. Accesses by threads of another block are ignored."""
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
