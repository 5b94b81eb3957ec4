"""Barriers in shared memory (mbarrier), and the sixteen named barriers of a block.

An mbarrier is 8 bytes of shared memory, referred to by its shared address. It counts arrivals and transaction bytes of asynchronous copies;
when all expected arrivals and bytes of a phase are counted, the phase completes and the next one begins. Phases have parity 0, 1, 0, ...,
and a thread waits for the phase of one parity to complete. PTX ISA, "Parallel synchronization and communication instructions: mbarrier".
"""

from numba import cuda

from minllm.ptx.instruction import instruction
from minllm.sim.arrays import fail
from minllm.sim.asynchrony import fence_mbarriers, meet, shared_bytes, state
from minllm.sim.mbarrier import MBarrier, mbarrier_at
from minllm.sim.thread import current_thread


def mbarrier_init(address, count):
    """mbarrier_init(address, count): initialise an mbarrier of `count` arrivals per phase at a shared address, a multiple of 8. One thread
    does this; a fence_mbarrier_init and a barrier then make it visible to all others. PTX ISA, "mbarrier.init"."""
    block, offset = shared_bytes(address, 8)
    if not 1 <= int(count) < 1 << 20:
        fail(f"an mbarrier of {int(count)} arrivals; it takes 1 to {(1 << 20) - 1}")
    if block.monitor is not None:
        block.monitor.uses_mbarrier(current_thread(), offset, True)
    state(block).mbarriers[offset] = MBarrier(block, offset, int(count), current_thread())


def mbarrier_inval(address):
    """mbarrier_inval(address): invalidate an mbarrier, so that its memory can be reused. PTX ISA, "mbarrier.inval"."""
    barrier = mbarrier_at(address)
    if barrier.waiters:
        fail(f"{len(barrier.waiters)} threads still wait at {barrier}")
    del state(barrier.block).mbarriers[barrier.offset]


def mbarrier_arrive(address):
    """mbarrier_arrive(address): one arrival, with release semantics: threads that wait for the phase see this thread's earlier accesses.
    PTX ISA, "mbarrier.arrive"."""
    mbarrier_at(address).arrive()


def mbarrier_arrive_cluster(address):
    """mbarrier_arrive_cluster(address): one arrival at an mbarrier of any block of the cluster, given by its shared::cluster address. PTX
    ISA, "mbarrier.arrive", .release.cluster.shared::cluster."""
    mbarrier_at(address).arrive()


def mbarrier_arrive_relaxed_cluster(address):
    """mbarrier_arrive_relaxed_cluster(address): mbarrier_arrive_cluster without release semantics. It suffices for a thread that has only
    read, and avoids the fence of a release, which waits for all of the thread's stores. PTX ISA, "mbarrier.arrive",
    .relaxed.cluster.shared::cluster."""
    mbarrier_at(address).arrive()


def mbarrier_arrive_expect_tx(address, byte_count):
    """mbarrier_arrive_expect_tx(address, byte_count): one arrival; `byte_count` more bytes must arrive before the phase completes. PTX
    ISA, "mbarrier.arrive", .expect_tx."""
    barrier = mbarrier_at(address)
    barrier.expect(int(byte_count))
    barrier.arrive()


def mbarrier_expect_tx(address, byte_count):
    """mbarrier_expect_tx(address, byte_count): `byte_count` more bytes must arrive before the phase completes; this is not an arrival. PTX
    ISA, "mbarrier.expect_tx"."""
    mbarrier_at(address).expect(int(byte_count))


def mbarrier_try_wait_parity(address, parity):
    """mbarrier_try_wait_parity(address, parity) -> uint32: 1 once the phase of this parity has completed, or 0 after a time limit, and then
    it must be called again, as mbarrier_wait_parity does. PTX ISA, "mbarrier.try_wait", .parity."""
    wait_parity(address, parity)
    return 1


def wait_parity(address, parity):
    """Wait until the phase of this parity has completed; returns what an acquire of it names."""
    if int(parity) not in (0, 1):
        fail(f"a phase's parity is 0 or 1, not {int(parity)}")
    return mbarrier_at(address).wait(int(parity))


def fence_mbarrier_init():
    """fence_mbarrier_init(): make the mbarriers that this thread has initialised visible to TMA (the tensor memory accelerator) and to the
    cluster's other blocks. PTX ISA, "fence.mbarrier_init"."""
    fence_mbarriers(current_thread())


def named_barrier(barrier, thread_count):
    """(key, thread count) of a named barrier, as checked ints. Raises SimulationError."""
    barrier, thread_count = int(barrier), int(thread_count)
    if not 1 <= barrier <= 15:
        fail(f"named barrier {barrier}; 1 to 15 are free, and 0 is cuda.syncthreads()'s own")
    if thread_count % 32 or thread_count < 32:
        fail(f"a named barrier for {thread_count} threads; it takes whole warps")
    return ("bar", barrier), thread_count


def bar_sync(barrier, thread_count):
    """bar_sync(barrier, thread_count): wait until `thread_count` threads (whole warps) of the block have reached this barrier (1 to 15)
    with bar_sync or bar_arrive. PTX ISA, "bar.sync"."""
    key, count = named_barrier(barrier, thread_count)
    meet(key, count, f"named barrier {key[1]} for {count} threads")


def bar_arrive(barrier, thread_count):
    """bar_arrive(barrier, thread_count): arrive at a named barrier without waiting. PTX ISA, "bar.arrive"."""
    key, count = named_barrier(barrier, thread_count)
    meet(key, count, "", waits=False)


def barrier_instruction(text, inputs, emulation, outputs="", convergent=False):
    """An `instruction` across which the compiler moves no memory access."""
    return instruction(text, outputs, inputs, emulation=emulation, touches_memory=True, convergent=convergent)


mbarrier_init = barrier_instruction("mbarrier.init.shared::cta.b64 [$0], $1;", "rr", mbarrier_init)
mbarrier_inval = barrier_instruction("mbarrier.inval.shared::cta.b64 [$0];", "r", mbarrier_inval)
mbarrier_arrive = barrier_instruction("mbarrier.arrive.shared::cta.b64 _, [$0];", "r", mbarrier_arrive)
mbarrier_arrive_cluster = barrier_instruction("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [$0];", "r", mbarrier_arrive_cluster)
mbarrier_arrive_relaxed_cluster = barrier_instruction(
    "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [$0];", "r", mbarrier_arrive_relaxed_cluster
)
mbarrier_arrive_expect_tx = barrier_instruction("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", "rr", mbarrier_arrive_expect_tx)
mbarrier_expect_tx = barrier_instruction("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [$0], $1;", "rr", mbarrier_expect_tx)
mbarrier_try_wait_parity = barrier_instruction(
    "{ .reg .pred complete; mbarrier.try_wait.parity.shared::cta.b64 complete, [$1], $2; selp.b32 $0, 1, 0, complete; }",
    "rr",
    mbarrier_try_wait_parity,
    outputs="r",
)
fence_mbarrier_init = barrier_instruction("fence.mbarrier_init.release.cluster;", "", fence_mbarrier_init)
bar_sync = barrier_instruction("bar.sync $0, $1;", "rr", bar_sync, convergent=True)
bar_arrive = barrier_instruction("bar.arrive $0, $1;", "rr", bar_arrive, convergent=True)


@cuda.jit(device=True)
def mbarrier_wait_parity(address, parity):
    """mbarrier_wait_parity(address, parity): wait until the phase of this parity has completed."""
    while mbarrier_try_wait_parity(address, parity) == 0:
        pass
