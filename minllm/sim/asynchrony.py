"""Asynchronous operations, and the async proxy's view of shared memory.

An asynchronous operation takes effect as late as possible. A copy that completes on an mbarrier arrives when a thread waits for the
barrier's phase and nothing else is missing; a bulk store reads its source and writes its destination when a thread waits for its group. So
a kernel that does not wait reads old data, and one that reuses a buffer too early stores or multiplies new data.

TMA (the tensor memory accelerator, which executes bulk and tensor copies) and wgmma access shared memory through the async proxy: they do
not see the stores of threads until a `fence.proxy.async` (PTX ISA, "Async proxy"). Here they use `asynchronous_view(block)`, which a fence
updates.
"""

from collections import Counter, deque

import numpy as np

from minllm.sim.arrays import fail
from minllm.sim.machine import SHARED_MEMORY_BYTES
from minllm.sim.thread import current_thread
from minllm.sim.transfer import CHUNK, commit, end_transfer, start_transfer, why_in_flight

RANK_SHIFT = 24  # a shared::cluster address is (rank + 1) << 24 | offset, a shared::cta address just the offset

COMPARED = 16  # wgmmas of a block whose operands are compared with what threads see


class BlockState:
    """A block's mbarriers, meetings of threads and how many there were by key, view of the async proxy, and register pool."""

    def __init__(self):
        self.mbarriers, self.meetings, self.met, self.view, self.registers = {}, {}, Counter(), None, None
        self.compared = 0  # wgmmas, see check_operands

    def end(self):
        """A message if copies into the shared memory of a block are under way when its last thread has returned, else None."""
        barrier = next((one for one in self.mbarriers.values() if one.copies), None)
        if barrier is None:
            return None
        count = sum(copy[0] for copy in barrier.copies)
        return f"ends before {count} bytes of copies into its shared memory have landed: nobody waits for {barrier.place}"


class ThreadState:
    """A thread's bulk stores and wgmmas, in open and committed groups. settling: whether wgmmas are being computed."""

    def __init__(self):
        self.stores, self.store_groups = [], deque()
        self.products, self.product_groups = [], deque()
        self.registers_fenced = self.settling = False

    def end(self):
        """Finish the bulk stores of a thread that has returned; returns a message if it should have waited first, else None."""
        if self.stores:
            return f"ends with a bulk store in flight, and {why_in_flight('a bulk store', False)}"
        stores = [store for group in self.store_groups for store in group]
        if any(store.data is None for store in stores):
            return (
                "ends before its bulk stores have read shared memory: wait with cp.async.bulk.wait_group (with .read only if nobody reads "
                "what they store before the kernel ends)"
            )
        for store in stores:
            store.finish()
        if self.products:
            return f"ends with a wgmma in flight, and {why_in_flight('wgmma', False)}"
        if self.product_groups:
            return "ends with wgmmas in flight: wait with wgmma.wait_group"
        return None


def state(owner):
    """The BlockState or ThreadState of a block or thread, created at its first use."""
    if owner.asynchronous is None:
        owner.asynchronous = BlockState() if hasattr(owner, "warps") else ThreadState()
    return owner.asynchronous


def park(thread, reason):
    """Stop the running thread until `wake`; str(reason) is its line in a deadlock report."""
    thread.waiting_for = reason
    thread.pause()


def wake(thread):
    """Let a parked thread continue."""
    thread.block.runnable.append(thread)


def meet(key, count, reason, value=None, compute=None, waits=True, orders=True, others=()):
    """Arrive at the meeting `key` of `count` threads, and wait for the others unless `waits` is False.

    The last thread computes `compute({thread: value})` -> {thread: result}; each thread that waited returns its result. reason: see `park`.
    orders: whether the meeting orders the memory accesses of all these threads, as a barrier does. others: threads that arrive with the
    running one, which waits for them too.
    """
    thread = current_thread()
    own = state(thread.block)
    values, waiting = own.meetings.setdefault(key, ({}, []))
    values.update(dict.fromkeys((*others, thread), value))
    this = key, own.met[key]  # later meetings of the same key are others
    if orders:
        release(thread, this)
    if len(values) < count:
        if waits:
            waiting.append(thread)
            park(thread, reason)
            if orders:
                acquire(thread, this)
        return thread.result
    del own.meetings[key]
    own.met[key] += 1
    results = compute(values) if compute else dict.fromkeys(values)
    for other in waiting:
        other.result = results[other]
        wake(other)
    if orders:
        acquire(thread, this)
    return results[thread]


def release(thread, thing):
    """Report to the monitor that the accesses of `thread` so far are visible after an acquire of `thing`."""
    if thread.block.monitor is not None:
        thread.block.monitor.release(thread, thing)


def acquire(thread, thing):
    """Report to the monitor that `thread` sees all accesses released to `thing`."""
    if thread.block.monitor is not None:
        thread.block.monitor.acquire(thread, thing)


# Addresses


def locate(address):
    """(block, offset) of the running thread's shared::cta or shared::cluster address."""
    block, address = current_thread().block, int(address)
    rank, offset = address >> RANK_SHIFT, address & (1 << RANK_SHIFT) - 1
    if rank:
        if block.cluster is None or rank > len(block.cluster.blocks):
            fail(f"address {address:#x} belongs to block {rank - 1} of a cluster of {len(block.cluster.blocks) if block.cluster else 1}")
        block = block.cluster.blocks[rank - 1]
        if block.alive == 0:
            fail(f"address {address:#x} belongs to a block that has ended: a cluster's blocks meet at a barrier before they end")
        visit(block)
    return block, offset


def visit(block):
    """Report to the monitor that the running thread is about to access a block's shared memory, if it is not the thread's own."""
    thread = current_thread()
    if block is not thread.block and block.monitor is not None:
        block.monitor.visits(thread, block)


def shared_bytes(address, count, alignment=None):
    """(block, offset) of `count` bytes at a shared address. Raises SimulationError if they are out of bounds or misaligned."""
    block, offset = locate(address)
    if not 0 <= offset <= block.shared_top - count:
        begun = "" if block is current_thread().block or block.shared_top else ": a cluster's blocks meet at a barrier first"
        fail(f"{count} bytes at shared address {offset} are outside the block's {block.shared_top} bytes of shared memory{begun}")
    if offset % (alignment or count):
        fail(f"shared address {offset} is not aligned to {alignment or count} bytes")
    return block, offset


# The async proxy's view of shared memory


def asynchronous_view(block):
    """Shared memory as TMA and wgmma see it: their own writes, and the stores of threads before a fence."""
    own = state(block)
    if own.view is None:
        own.view = np.full(SHARED_MEMORY_BYTES, 0xFF, np.uint8)
    return own.view


def fence_asynchronous_view(thread):
    """Make the running thread's stores and its new mbarriers visible to the async proxy."""
    block = thread.block
    asynchronous_view(block)[: block.shared_top] = block.shared[: block.shared_top]
    fence_mbarriers(thread)


def fence_mbarriers(thread):
    """Make the running thread's new mbarriers visible to the async proxy and the cluster."""
    for barrier in state(thread.block).mbarriers.values():
        if barrier.unfenced_by is thread:
            barrier.unfenced_by = None


# Bulk stores


class BulkStore:
    """A bulk copy out of shared memory. It reads and writes only when the thread that started it waits for that.

    targets: the parts of global memory that it writes, each (array, first byte in its root, bytes); empty without a monitor.
    """

    def __init__(self, read, write, block, chunks, targets):
        self.read_source, self.write, self.data, self.targets = read, write, None, targets
        self.transfer = start_transfer(current_thread(), block, "a bulk store", "read", chunks)
        if self.transfer is not None:
            block.monitor.store_starts(self)

    def read(self):
        """Read the source's bytes, unless this has already happened."""
        if self.data is None:
            check_fenced(self.transfer)
            self.data = self.read_source()
            end_transfer(self.transfer, [current_thread()])

    def finish(self):
        """Read the source and write the destination."""
        self.read()
        self.write(self.data)
        if self.transfer is not None:
            self.transfer.block.monitor.store_ends(self)


def check_fenced(transfer):
    """Raise SimulationError if a copy or a wgmma reads bytes that threads stored after the last fence.proxy.async."""
    if transfer is None:
        return
    block, chunks = transfer.block, transfer.chunks
    seen, stored = (memory.reshape(-1, CHUNK)[chunks] for memory in (asynchronous_view(block), block.shared))
    stale = (seen != stored).any(1)
    if stale.any():
        address = int(chunks[stale.argmax()]) * CHUNK
        fail(
            f"{transfer.unit} that this thread has started reads {block.shared_name(address)} (address {address}) and does not see what "
            f"threads have stored there: no fence.proxy.async stands between the stores and {transfer.unit}"
        )


def check_operands(transfer):
    """check_fenced for the first wgmmas of a block: a missing fence shows there, and the comparison takes time."""
    if transfer is not None:
        own = state(transfer.block)
        own.compared += 1
        if own.compared <= COMPARED:
            check_fenced(transfer)


def commit_stores():
    """Commit the running thread's bulk stores since its last group as a new group."""
    own = state(current_thread())
    commit(store.transfer for store in own.stores)
    own.store_groups.append(own.stores)
    own.stores = []


def wait_for_stores(pending, only_read):
    """Complete the reads of all but the newest `pending` groups, and their writes unless `only_read`."""
    groups = state(current_thread()).store_groups
    for group in list(groups)[: max(len(groups) - pending, 0)]:
        for store in group:
            store.read() if only_read else store.finish()
        if not only_read:
            groups.popleft()
