"""What runs beside the threads: barriers in shared memory, bulk copies, and shared memory as the asynchronous units see it.

Nothing asynchronous takes effect before somebody waits for it: a copy that completes on an mbarrier lands when a thread waits for that
barrier's phase and nothing else is missing; a bulk store reads its source and writes its destination when its group is waited for. A
kernel that forgets to wait therefore finds old data, and one that reuses a buffer too early sends or multiplies new data.

The copy engine and wgmma do not see what threads store to shared memory until a `fence.proxy.async` (PTX ISA, "Async proxy"): they work
on `asynchronous_view(block)`, which a fence brings up to date.
"""

from collections import deque

import numpy as np
from greenlet import getcurrent

from minllm.sim.arrays import fail
from minllm.sim.machine import SHARED_MEMORY_BYTES, block_scheduler_switch

RANK_SHIFT = 24  # a shared::cluster address is (rank + 1) << 24 | offset, a shared::cta address the offset alone
LARGEST_TRANSACTION = (1 << 20) - 1


class BlockState:
    """What a block has beside its threads: mbarriers by address, meetings of some of its threads, the asynchronous units' view."""

    def __init__(self):
        self.mbarriers, self.meetings, self.view = {}, {}, None


class ThreadState:
    """What a thread has started and not yet waited for: bulk stores, and warpgroup products, each in open and committed groups."""

    def __init__(self):
        self.stores, self.store_groups = [], deque()
        self.products, self.product_groups = [], deque()
        self.registers_fenced = False

    def end(self):
        """The thread has returned: finish what may outlive it; what it should have waited for instead, as text, or None."""
        stores = [store for group in [*self.store_groups, self.stores] for store in group]
        if any(store.data is None for store in stores):
            return "ends before its bulk stores have read shared memory: wait with cp.async.bulk.wait_group.read"
        for store in stores:
            store.finish()
        if self.products or self.product_groups:
            return "ends with warpgroup products under way: wait with wgmma.wait_group"
        return None


def state(owner):
    """The BlockState or ThreadState of a block or thread, made when first asked for."""
    if owner.asynchronous is None:
        owner.asynchronous = BlockState() if hasattr(owner, "warps") else ThreadState()
    return owner.asynchronous


def park(thread, reason):
    """Stop the running thread until `wake`; `reason`, as text, is what a deadlock report says of it."""
    thread.waiting_for = reason
    block_scheduler_switch(thread)


def wake(thread):
    """Let a parked thread go on."""
    thread.block.runnable.append(thread)


def meet(key, count, reason, value=None, compute=None, waits=True):
    """Come with `key` to where `count` threads of the block are to meet, and wait there for them unless `waits` is False.

    The last to come computes `compute({thread: value})` -> {thread: result}; each thread that waited returns its result.
    """
    thread = getcurrent()
    meetings = state(thread.block).meetings
    values, waiting = meetings.setdefault(key, ({}, []))
    values[thread] = value
    release(thread, key)
    if len(values) < count:
        if waits:
            waiting.append(thread)
            park(thread, reason)
            acquire(thread, key)
        return thread.result
    del meetings[key]
    results = compute(values) if compute else dict.fromkeys(values)
    for other in waiting:
        other.result = results[other]
        wake(other)
    acquire(thread, key)
    return results[thread]


def release(thread, thing):
    """Tell the monitor that what `thread` has done is settled for those who acquire `thing`."""
    if thread.block.monitor is not None:
        thread.block.monitor.release(thread, thing)


def acquire(thread, thing):
    """Tell the monitor that `thread` has waited for what was released to `thing`."""
    if thread.block.monitor is not None:
        thread.block.monitor.acquire(thread, thing)


# Addresses


def locate(address):
    """(block, offset) of a shared::cta or shared::cluster address, as the running thread means it."""
    block, address = getcurrent().block, int(address)
    rank, offset = address >> RANK_SHIFT, address & (1 << RANK_SHIFT) - 1
    if rank:
        if block.cluster is None or rank > len(block.cluster.blocks):
            fail(f"address {address:#x} belongs to block {rank - 1} of a cluster of {len(block.cluster.blocks) if block.cluster else 1}")
        block = block.cluster.blocks[rank - 1]
        if block.alive == 0:
            fail(f"address {address:#x} belongs to a block that has ended: a cluster's blocks meet at a barrier before they end")
    return block, offset


def shared_bytes(address, count, alignment=None):
    """(block, offset) of `count` bytes that exist and are aligned."""
    block, offset = locate(address)
    if not 0 <= offset <= block.shared_top - count:
        fail(f"{count} bytes at shared address {offset} are outside the block's {block.shared_top} bytes of shared memory")
    if offset % (alignment or count):
        fail(f"shared address {offset} is not aligned to {alignment or count} bytes")
    return block, offset


# The asynchronous units' view of shared memory


def asynchronous_view(block):
    """Shared memory as copy engine and wgmma see it: what they wrote themselves, and what threads wrote before a fence."""
    own = state(block)
    if own.view is None:
        own.view = np.full(SHARED_MEMORY_BYTES, 0xFF, np.uint8)
    return own.view


def fence_asynchronous_view(thread):
    """The running thread's stores become visible to the asynchronous units, and its new mbarriers too."""
    block = thread.block
    asynchronous_view(block)[: block.shared_top] = block.shared[: block.shared_top]
    fence_mbarriers(thread)


def fence_mbarriers(thread):
    """The mbarriers that the running thread has initialised become visible to the asynchronous units and to the cluster."""
    for barrier in state(thread.block).mbarriers.values():
        if barrier.unfenced_by is thread:
            barrier.unfenced_by = None


# mbarriers


class MBarrier:
    """An mbarrier object: a phase that completes once all arrivals have come and all expected bytes have landed.

    PTX ISA, "mbarrier": `count` arrivals a phase, `pending` of them missing, `transactions` bytes expected and not yet landed.
    """

    def __init__(self, block, offset, count, thread):
        self.block, self.offset, self.count, self.pending = block, offset, count, count
        self.phase, self.transactions = 0, 0
        self.copies, self.waiters = deque(), []
        self.unfenced_by = thread

    def __str__(self):
        missing = self.transactions - sum(size for size, _, _ in self.copies)
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
        release(getcurrent(), self)
        self.settle()

    def start_copy(self, byte_count, land):
        """A copy of `byte_count` bytes is under way; `land(thread)`, with the one that started it, is called when it has to be there."""
        if self.unfenced_by is not None:
            fail(f"a copy completes on {self}, whose initialisation no fence.mbarrier_init or fence.proxy.async has made visible")
        self.copies.append((byte_count, land, getcurrent()))
        self.settle()

    def settle(self):
        """Let copies land if somebody waits for them and arrivals are complete; complete the phase if nothing is missing."""
        if self.pending:
            return
        while self.waiters and self.copies:
            byte_count, land, starter = self.copies.popleft()
            land(starter)
            release(starter, self)
            self.transactions -= byte_count
        if self.transactions == 0:
            self.phase, self.pending = self.phase ^ 1, self.count
            thread, waiters, self.waiters = getcurrent(), self.waiters, []
            for waiter in waiters:
                if waiter is not thread:
                    wake(waiter)

    def wait(self, parity):
        """Suspend the running thread until the phase of this parity has completed."""
        thread = getcurrent()
        if self.phase == parity:
            self.waiters.append(thread)
            self.settle()
            if self.phase == parity:
                park(thread, self)
        acquire(thread, self)


def mbarrier_at(address):
    """The mbarrier at a shared address; SimulationError if none was initialised there."""
    block, offset = shared_bytes(address, 8)
    found = state(block).mbarriers.get(offset)
    if found is None:
        fail(f"no mbarrier has been initialised at shared address {offset} of block {tuple(block.index)}")
    if found.unfenced_by is not None and block is not getcurrent().block:
        fail(f"another block uses {found}, whose initialisation no fence.mbarrier_init has made visible to the cluster")
    return found


# Bulk stores


class BulkStore:
    """A bulk copy out of shared memory: reads its source, and writes its destination, when the thread that started it waits for that."""

    def __init__(self, read, write):
        self.read_source, self.write, self.data = read, write, None

    def read(self):
        """Take the source's bytes, if that has not happened yet."""
        if self.data is None:
            self.data = self.read_source()

    def finish(self):
        """Read and write."""
        self.read()
        self.write(self.data)


def commit_stores():
    """Close the group of bulk stores that the running thread has started since the last one."""
    own = state(getcurrent())
    own.store_groups.append(own.stores)
    own.stores = []


def wait_for_stores(pending, only_read):
    """All but the newest `pending` groups have read their sources, or have been written too."""
    groups = state(getcurrent()).store_groups
    for group in list(groups)[: max(len(groups) - pending, 0)]:
        for store in group:
            store.read() if only_read else store.finish()
        if not only_read:
            groups.popleft()
