"""Races in shared memory: two threads at the same byte, at least one writing, with nothing that orders one before the other.

What orders two threads: a block barrier; for lanes of a warp, a warp-wide instruction that both take part in; a release by one and an
acquire by the other (an mbarrier). Each thread has a clock that goes on at each of these; an access is stamped with the clock of the
thread, and another thread comes after it once it `knows` a later clock of that thread (Lamport's happens-before, with vector clocks).
Most kernels synchronise by whole warps and blocks only: then one clock a warp is enough, and no vectors are kept. What runs beside the
threads has clocks of its own: transfers.py.
"""

import numpy as np

from minllm.sim.arrays import fail
from minllm.sim.detectors.transfers import VERBS, Transfers
from minllm.sim.monitor import Monitor
from minllm.sim.place import describe_instruction
from minllm.sim.thread import WARP_SIZE


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
        # Columns of `known` behind those of the threads are the clocks of units that transfer: `settled`, what all knew at the barrier.
        self.transfers, self.settled = None, np.zeros(0, np.int64)

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
            threads = np.where(warps[:, None] == warps[None, :], np.array(self.clocks)[None, :], 0)
            self.known = np.hstack([threads, np.broadcast_to(self.settled, (count, self.settled.size))])

    def new_epoch(self):
        """A barrier: all comes after all that was before."""
        self.epoch += 1
        if self.known is not None:
            self.settled = self.known[:, len(self.clocks) :].max(0)
        self.known = None
        self.released.clear()

    def widen(self, units):
        """Have room for the clocks of so many units."""
        missing = units - self.settled.size
        if missing > 0:
            self.settled = np.pad(self.settled, (0, missing))
            if self.known is not None:
                self.known = np.pad(self.known, ((0, 0), (0, missing)))
                self.released = {thing: np.pad(known, (0, missing)) for thing, known in self.released.items()}

    def tell(self, unit, clock, threads, thing):
        """These threads know what a unit did up to a clock, and who acquires `thing` will."""
        self.begin_vectors()
        column = len(self.clocks) + unit
        for thread in threads:
            self.known[thread.number, column] = clock
        if thing is not None:
            known = self.released.setdefault(thing, np.zeros(self.known.shape[1], self.known.dtype))
            known[column] = clock

    def knows(self, thread, unit):
        """The clock up to which a thread knows what a unit did."""
        return self.settled[unit] if self.known is None else self.known[thread.number, len(self.clocks) + unit]

    def ordered(self, other, clock, thread):
        """Whether `thread` comes after what thread number `other` did at `clock` in this epoch."""
        if other == thread.number:
            return True
        if self.known is not None:
            return clock < self.known[thread.number, other]
        return other // WARP_SIZE == thread.number // WARP_SIZE and clock < self.clocks[thread.number]

    def compare(self, thread, who, address, cell, kind):
        """Report the first access to a cell, of this epoch, that conflicts with one of this kind and that nothing orders before it."""
        number = thread.number
        if cell.writer is not None and cell.writer != number and not self.ordered(cell.writer, cell.write[0], thread):
            self.report(thread, who, address, cell.writer, cell.write)
        if kind != "read":
            self.compare_all(thread, who, address, cell.reads)
        if kind != "atomic":
            self.compare_all(thread, who, address, cell.atomics)

    def compare_all(self, thread, who, address, accesses):
        """Report the first of the accesses, by thread number, that nothing orders before this one."""
        for other, stamp in accesses.items():
            if other != thread.number and not self.ordered(other, stamp[0], thread):
                self.report(thread, who, address, other, stamp)

    def compare_cells(self, thread, who, start_byte, byte_count, kind):
        """Compare an access of several cells, which leaves no trace in them."""
        for key in range(start_byte // self.granule, (start_byte + byte_count) // self.granule):
            cell = self.cells.get(key)
            if cell is not None and cell.epoch == self.epoch:
                self.compare(thread, who, key * self.granule, cell, kind)

    def report(self, thread, who, address, other_number, other):
        """Name both threads, both places, and the memory."""
        _, code, offset, other_kind = other
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
        if event == "cp_async":
            self.access(thread, array, start_byte, byte_count, "write", frame)

    def transfer_starts(self, transfer):
        history = transfer.block.shared_root.notes["history"]
        if history.transfers is None:
            history.transfers = Transfers(history)
        # The access that cp.async makes when it starts and when it ends has been compared already.
        history.transfers.begin(transfer) if transfer.unit == "cp.async" else history.transfers.start(transfer)

    def transfer_ends(self, transfer, threads, thing):
        history = transfer.block.shared_root.notes.get("history")
        if history is not None:
            history.transfers.leave(transfer) if transfer.unit == "cp.async" else history.transfers.end(transfer, threads, thing)

    def access(self, thread, array, start_byte, byte_count, kind, frame):
        """Compare an access with those before it, and remember it. Those of a cluster's other blocks are not followed."""
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
            if cell is None or cell.epoch != epoch:
                cell = cells[key] = Cell(epoch)
            else:
                history.compare(thread, who, key * granule, cell, kind)
            if kind == "read":
                cell.reads[number] = stamp
            elif kind == "atomic":
                cell.atomics[number] = stamp
            else:
                cell.writer, cell.write = number, stamp


THIS_THREAD = {kind: f"this thread {verb}" for kind, verb in VERBS.items()}
