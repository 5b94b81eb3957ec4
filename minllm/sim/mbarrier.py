"""mbarriers: barriers that also count the bytes of copies. PTX ISA, "mbarrier".

A copy that completes on an mbarrier lands as late as possible: when a thread waits for the mbarrier's phase and no arrival is missing.
"""

from collections import deque

from minllm.sim.arrays import fail
from minllm.sim.asynchrony import acquire, park, release, shared_bytes, state, wake
from minllm.sim.thread import current_thread
from minllm.sim.transfer import end_transfer

LARGEST_TRANSACTION = (1 << 20) - 1


class MBarrier:
    """An mbarrier object; a phase completes when no arrival and no byte is missing.

    completed: number of completed phases. count: arrivals per phase. pending: missing arrivals of the current phase. transactions
    (tx-count): bytes expected and not yet landed. unfenced_by: the thread that initialised it, until a fence makes that visible.
    """

    def __init__(self, block, offset, count, thread):
        self.block, self.offset, self.count, self.pending = block, offset, count, count
        self.completed, self.transactions = 0, 0
        self.copies, self.waiters = deque(), []
        self.unfenced_by = thread

    @property
    def phase(self):
        """The parity of the current phase."""
        return self.completed & 1

    def __str__(self):
        missing = self.transactions - sum(copy[0] for copy in self.copies)
        counted = f"{missing} bytes that nobody sends" if missing >= 0 else f"gets {-missing} bytes more than it expects"
        return f"{self.place}, whose phase of parity {self.phase} lacks {self.pending} of {self.count} arrivals and {counted}"

    @property
    def place(self):
        """Where the mbarrier is, as text."""
        return f"the mbarrier at shared address {self.offset} of block {tuple(self.block.index)}"

    def expect(self, byte_count):
        """expect-tx: `byte_count` more bytes must land before the phase completes."""
        self.transactions += byte_count
        if self.transactions > LARGEST_TRANSACTION:
            fail(f"{self} expects more than {LARGEST_TRANSACTION} bytes")

    def arrive(self, count=1):
        """arrive-on: `count` arrivals."""
        if count > self.pending:
            fail(f"one arrival too many at {self}")
        release(current_thread(), (self, self.completed))
        self.pending -= count
        self.settle()

    def start_copy(self, byte_count, land, transfer=None):
        """Start a copy of `byte_count` bytes; `land(thread that started it)` is called when it lands.

        transfer: its Transfer; without one, monitors see the copy as an access by that thread at the time when it lands.
        """
        if self.unfenced_by is not None:
            fail(f"a copy completes on {self}, whose initialisation no fence.mbarrier_init or fence.proxy.async has made visible")
        self.copies.append((byte_count, land, current_thread(), transfer))
        self.settle()

    def settle(self):
        """Let copies land, and complete the phase, if nothing else is missing."""
        if self.pending:
            return
        while self.waiters and self.copies:
            byte_count, land, starter, transfer = self.copies.popleft()
            land(starter)
            if transfer is None:
                release(starter, (self, self.completed))
            else:
                end_transfer(transfer, thing=(self, self.completed))
            self.transactions -= byte_count
        if self.transactions == 0:
            if self.copies:
                early = sum(copy[0] for copy in self.copies)
                fail(f"a phase of {self.place} completes before {early} bytes of copies have landed on it, which it does not expect")
            self.completed, self.pending = self.completed + 1, self.count
            thread, waiters, self.waiters = current_thread(), self.waiters, []
            for waiter in waiters:
                if waiter is not thread:
                    wake(waiter)

    def wait(self, parity):
        """Suspend the running thread until the phase of this parity has completed; returns (self, the phase's number)."""
        thread = current_thread()
        number = self.completed if self.phase == parity else self.completed - 1  # the phase to wait for
        if self.completed == number:
            if self.block.monitor is not None:
                self.block.monitor.waits(thread, self, number)
            self.waiters.append(thread)
            self.settle()
            if self.completed == number:
                park(thread, self)
        acquire(thread, (self, number))  # not later phases, which may complete before the thread continues
        return self, number


def mbarrier_at(address):
    """The MBarrier at a shared address. Raises SimulationError if none was initialised there."""
    block, offset = shared_bytes(address, 8)
    thread = current_thread()
    if block is thread.block and block.monitor is not None:
        block.monitor.uses_mbarrier(thread, offset, False)
    found = state(block).mbarriers.get(offset)
    if found is None:
        fail(f"no mbarrier has been initialised at shared address {offset} of block {tuple(block.index)}")
    if found.unfenced_by is not None and block is not thread.block:
        fail(f"another block uses {found}, whose initialisation no fence.mbarrier_init has made visible to the cluster")
    return found
