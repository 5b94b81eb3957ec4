"""mbarriers: barriers in shared memory that also count the bytes which copies deliver. PTX ISA, "mbarrier".

A copy that completes on an mbarrier lands no sooner than it has to: when a thread waits for the barrier's phase, and no arrival is missing.
"""

from collections import deque

from greenlet import getcurrent

from minllm.sim.arrays import fail
from minllm.sim.asynchrony import acquire, park, release, shared_bytes, state, wake
from minllm.sim.transfer import end_transfer

LARGEST_TRANSACTION = (1 << 20) - 1


class MBarrier:
    """An mbarrier object: a phase that completes once all arrivals have come and all expected bytes have landed.

    PTX ISA, "mbarrier": `completed` phases, `count` arrivals a phase, `pending` of them missing, `transactions` bytes expected and not yet
    landed.
    """

    def __init__(self, block, offset, count, thread):
        self.block, self.offset, self.count, self.pending = block, offset, count, count
        self.completed, self.transactions = 0, 0
        self.copies, self.waiters = deque(), []
        self.unfenced_by = thread

    @property
    def phase(self):
        """The parity of the phase that is under way."""
        return self.completed & 1

    def __str__(self):
        missing = self.transactions - sum(copy[0] for copy in self.copies)
        return (
            f"the mbarrier at shared address {self.offset} of block {tuple(self.block.index)}, whose phase of parity {self.phase} lacks "
            f"{self.pending} of {self.count} arrivals and {missing} bytes that nobody sends"
        )

    def expect(self, byte_count):
        """More bytes are to land in this phase."""
        self.transactions += byte_count
        if self.transactions > LARGEST_TRANSACTION:
            fail(f"{self} expects more than {LARGEST_TRANSACTION} bytes")

    def arrive(self, count=1):
        """One arrival, or several."""
        if count > self.pending:
            fail(f"one arrival too many at {self}")
        self.pending -= count
        release(getcurrent(), (self, self.completed))
        self.settle()

    def start_copy(self, byte_count, land, transfer=None):
        """A copy of `byte_count` bytes is under way; `land(thread)`, with the one that started it, is called when it has to be there.

        transfer: what monitors know it as; without one it counts as something that the thread itself does when it lands.
        """
        if self.unfenced_by is not None:
            fail(f"a copy completes on {self}, whose initialisation no fence.mbarrier_init or fence.proxy.async has made visible")
        self.copies.append((byte_count, land, getcurrent(), transfer))
        self.settle()

    def settle(self):
        """Let copies land if somebody waits for them and arrivals are complete; complete the phase if nothing is missing."""
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
            self.completed, self.pending = self.completed + 1, self.count
            thread, waiters, self.waiters = getcurrent(), self.waiters, []
            for waiter in waiters:
                if waiter is not thread:
                    wake(waiter)

    def wait(self, parity):
        """Suspend the running thread until the phase of this parity has completed."""
        thread = getcurrent()
        number = self.completed if self.phase == parity else self.completed - 1  # of the phase that is waited for
        if self.completed == number:
            self.waiters.append(thread)
            self.settle()
            if self.completed == number:
                park(thread, self)
        acquire(thread, (self, number))  # and not of later ones, which may have completed before the thread goes on


def mbarrier_at(address):
    """The mbarrier at a shared address; SimulationError if none was initialised there."""
    block, offset = shared_bytes(address, 8)
    found = state(block).mbarriers.get(offset)
    if found is None:
        fail(f"no mbarrier has been initialised at shared address {offset} of block {tuple(block.index)}")
    if found.unfenced_by is not None and block is not getcurrent().block:
        fail(f"another block uses {found}, whose initialisation no fence.mbarrier_init has made visible to the cluster")
    return found
