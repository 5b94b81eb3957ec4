"""Races with asynchronous transfers: bulk copies and stores, cp.async, wgmma.

While a transfer is in flight, no thread, not even the one that started it, may write the memory that it reads or access the memory that it
writes. After its end this still holds for threads that are not ordered after it. Ordered are the threads that waited for it, and those that
synchronise with them (Lamport's happens-before, with a clock per transferring unit besides the threads' clocks in races.py).
"""

import numpy as np

from minllm.sim.arrays import fail
from minllm.sim.machine import SHARED_MEMORY_BYTES
from minllm.sim.place import describe_instruction
from minllm.sim.transfer import CHUNK, why_in_flight

CHUNKS = SHARED_MEMORY_BYTES // CHUNK
KINDS = ("read", "write")
CONFLICTING = {"read": ("write",), "write": KINDS, "atomic": KINDS}  # the transfers that an access may race with
VERBS = {"read": "reads", "write": "writes", "atomic": "changes"}
THIS_THREAD = {kind: f"this thread {verb}" for kind, verb in VERBS.items()}
NOT_DONE = "nothing tells this thread that it is done"


class Unit:
    """A unit's finished transfers. done[n - 1]: the one that ended at clock n; last[kind][chunk]: clock of the chunk's last one."""

    def __init__(self, number):
        self.number, self.done = number, []
        self.last = {kind: np.zeros(CHUNKS, np.int32) for kind in KINDS}
        self.look_last = {kind: memoryview(clocks) for kind, clocks in self.last.items()}  # faster access to single chunks


class Transfers:
    """The transfers of one block: those in flight, and those finished, by unit."""

    def __init__(self, history):
        self.history = history
        self.under_way, self.units = {}, {}
        self.counts = {kind: np.zeros(CHUNKS, np.uint16) for kind in KINDS}
        self.reading, self.writing = (memoryview(self.counts[kind]) for kind in KINDS)
        # For each chunk, the last epoch in which a thread accessed it, and the last in which a transfer of it ended.
        self.touched, self.ended = history.touched(), np.full(CHUNKS, -1, np.int32)
        self.touch, self.look_ended = memoryview(self.touched), memoryview(self.ended)

    def unit_of(self, transfer):
        """The Unit of a transfer: TMA per thread, or tensor cores per warpgroup."""
        block, number = transfer.thread.block, transfer.thread.number
        key = transfer.unit, block.rank, number // 128 if transfer.unit == "wgmma" else number
        if key not in self.units:
            self.units[key] = Unit(len(self.units))
            self.history.widen(len(self.units))
        return self.units[key]

    def access(self, thread, start_byte, byte_count, kind):
        """Compare a thread's own access with transfers."""
        epoch = self.history.epoch
        for chunk in range(start_byte // CHUNK, (start_byte + byte_count - 1) // CHUNK + 1):
            self.touch[chunk] = epoch
            if self.writing[chunk] or kind != "read" and self.reading[chunk]:
                self.report_under_way(THIS_THREAD[kind], [chunk], kind, start_byte)
            if self.look_ended[chunk] == epoch:
                self.compare_done_at(thread, chunk, kind, start_byte)

    def start(self, transfer):
        """Begin a transfer: compare it with others and with the threads' accesses."""
        chunks, kind, thread = transfer.chunks, transfer.kind, transfer.thread
        who = f"{transfer.unit} that this thread starts {VERBS[kind]}"
        if self.counts["write"][chunks].any() or kind == "write" and self.counts["read"][chunks].any():
            self.report_under_way(who, chunks, kind)
        if thread.block is self.history.block:
            self.compare_done(thread, who, chunks, kind)
            self.history.compare_chunks(thread, who, chunks[self.touched[chunks] == self.history.epoch], kind)
        self.begin(transfer)

    def begin(self, transfer):
        """Add a transfer to those in flight."""
        self.under_way[transfer] = None
        self.counts[transfer.kind][transfer.chunks] += 1

    def leave(self, transfer):
        """Remove a transfer from those in flight."""
        del self.under_way[transfer]
        self.counts[transfer.kind][transfer.chunks] -= 1

    def end(self, transfer, threads, thing):
        """Record the end of a transfer; it is ordered before `threads`, and before threads that will acquire `thing`."""
        self.leave(transfer)
        unit = self.unit_of(transfer)
        unit.done.append(transfer)
        unit.last[transfer.kind][transfer.chunks] = len(unit.done)
        self.ended[transfer.chunks] = self.history.epoch
        self.history.tell(unit.number, len(unit.done), threads, thing)

    def compare_done(self, thread, who, chunks, kind):
        """Report a finished transfer that is not ordered before the one that a thread starts."""
        for unit in self.units.values():
            known = self.history.knows(thread, unit.number)
            for other in CONFLICTING[kind]:
                clocks = unit.last[other][chunks]
                if clocks.max() > known:
                    at = int(clocks.argmax())
                    self.report(who, int(chunks[at]) * CHUNK, unit.done[clocks[at] - 1], NOT_DONE)

    def compare_done_at(self, thread, chunk, kind, start_byte):
        """Report a finished transfer of one chunk that is not ordered before the thread's access."""
        for unit in self.units.values():
            known = self.history.knows(thread, unit.number)
            for other in CONFLICTING[kind]:
                clock = unit.look_last[other][chunk]
                if clock > known:
                    self.report(THIS_THREAD[kind], max(chunk * CHUNK, start_byte), unit.done[clock - 1], NOT_DONE)

    def report_under_way(self, who, chunks, kind, start_byte=0):
        """Report the first transfer in flight that conflicts with an access to these chunks."""
        for transfer in self.under_way:
            both = np.intersect1d(transfer.chunks, chunks)
            if both.size and (kind != "read" or transfer.kind == "write"):
                self.report(who, max(int(both[0]) * CHUNK, start_byte), transfer, why_in_flight(transfer.unit, transfer.committed))

    def report(self, who, address, transfer, why):
        """Raise SimulationError with both accesses and the memory."""
        name, started = self.history.block.shared_name(address), describe_instruction(transfer.code, transfer.offset)
        fail(
            f"race on shared memory: {who} {name} (address {address}), which {transfer.unit} that thread {tuple(transfer.thread.index)} "
            f"has started at {started} {VERBS[transfer.kind]}, and {why}"
        )
