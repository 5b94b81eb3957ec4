"""Clusters of blocks, their barrier, and distributed shared memory.

The blocks of a cluster run at the same time, on SMs of one GPC. A shared::cluster address, made by `mapa`, refers to the shared memory of
any block of the cluster; a plain shared address refers to the block's own. PTX ISA, "Cluster dimension, cluster rank", "barrier.cluster",
"mapa", "ld", "st".
"""

import numpy as np

from minllm.ptx.instruction import instruction
from minllm.sim.arrays import fail
from minllm.sim.asynchrony import RANK_SHIFT, shared_bytes
from minllm.sim.machine import collective
from minllm.sim.mbarrier import mbarrier_at
from minllm.sim.thread import current_thread


def cluster_of(thread):
    """The thread's cluster. Raises SimulationError in a launch without clusters."""
    if thread.block.cluster is None:
        fail("this launch has no clusters: launch with cluster=(x, y, z)")
    return thread.block.cluster


def cluster_ctarank():
    """cluster_ctarank() -> uint32: the block's rank in its cluster. PTX ISA, "%cluster_ctarank"."""
    return current_thread().block.rank


def cluster_nctarank():
    """cluster_nctarank() -> uint32: the number of blocks in the cluster. PTX ISA, "%cluster_nctarank"."""
    cluster = current_thread().block.cluster
    return len(cluster.blocks) if cluster else 1


def make_cluster_ctaid(axis):
    """The function that reads %cluster_ctaid.x, .y or .z."""

    def cluster_ctaid():
        block = current_thread().block
        return block.index["xyz".index(axis)] % block.cluster.dimensions["xyz".index(axis)] if block.cluster else 0

    cluster_ctaid.__name__ = f"cluster_ctaid_{axis}"
    cluster_ctaid.__doc__ = f"""cluster_ctaid_{axis}() -> uint32: the block's place in its cluster along {axis}. PTX ISA,
    "%cluster_ctaid"."""
    return instruction(f"mov.u32 $0, %cluster_ctaid.{axis};", "r", emulation=cluster_ctaid)


def barrier_cluster_arrive():
    """barrier_cluster_arrive(): arrive at the cluster's barrier. Every thread of the cluster must do so, and call barrier_cluster_wait
    later. PTX ISA, "barrier.cluster.arrive", .release."""
    thread = current_thread()
    cluster_of(thread).arrive(thread)


def barrier_cluster_arrive_relaxed():
    """barrier_cluster_arrive_relaxed(): barrier_cluster_arrive that orders no memory accesses, and so does not wait for the thread's
    stores. Use it after fence_mbarrier_init, which orders the initialisation of mbarriers, or before a block exits whose shared memory
    others have read. PTX ISA, "barrier.cluster.arrive", .relaxed."""
    thread = current_thread()
    cluster_of(thread).arrive(thread, orders=False)


def barrier_cluster_wait():
    """barrier_cluster_wait(): wait until all threads of the cluster have arrived. PTX ISA, "barrier.cluster.wait", .acquire."""
    thread = current_thread()
    cluster = cluster_of(thread)
    if thread not in cluster.arrived_in:
        fail("barrier.cluster.wait without barrier.cluster.arrive before it")
    cluster.wait(thread)


def mapa(address, rank):
    """mapa(address, rank) -> uint32: the shared::cluster address that corresponds to a shared address in the block with this rank. PTX
    ISA, "mapa"."""
    thread, rank = current_thread(), int(rank)
    if not 0 <= rank < (len(thread.block.cluster.blocks) if thread.block.cluster else 1):
        fail(f"mapa to rank {rank}, which the cluster does not have")
    return (rank + 1) << RANK_SHIFT | int(address) & (1 << RANK_SHIFT) - 1 if thread.block.cluster else int(address)


def window(address, kind, byte_count=4):
    """`byte_count` bytes at a shared::cluster address, which is a multiple of `byte_count`."""
    block, offset = shared_bytes(address, byte_count)
    return block.shared_root.window(offset, byte_count, kind=kind)


def ld_shared_cluster_u32(address):
    """ld_shared_cluster_u32(address) -> uint32 at a shared::cluster address. PTX ISA, "ld", .shared::cluster."""
    return int(window(address, "read").view(np.uint32)[0])


def ld_shared_cluster_f32(address):
    """ld_shared_cluster_f32(address) -> float32 at a shared::cluster address. PTX ISA, "ld", .shared::cluster."""
    return window(address, "read").view(np.float32)[0]


def ld_shared_cluster_v4_f32(address):
    """ld_shared_cluster_v4_f32(address) -> four float32 from a shared::cluster address on, a multiple of 16. PTX ISA, "ld",
    .shared::cluster, vector v4."""
    return tuple(window(address, "read", 16).view(np.float32))


def st_shared_cluster_u32(address, value):
    """st_shared_cluster_u32(address, value): store a uint32 at a shared::cluster address. PTX ISA, "st", .shared::cluster."""
    window(address, "write").view(np.uint32)[0] = int(value) & 0xFFFFFFFF


def st_shared_cluster_f32(address, value):
    """st_shared_cluster_f32(address, value): store a float32 at a shared::cluster address. PTX ISA, "st", .shared::cluster."""
    window(address, "write").view(np.float32)[0] = value


def store_asynchronously(address, words, barrier):
    """Store words in another block's shared memory, and complete their bytes on an mbarrier of that block."""
    target, offset = shared_bytes(address, words.nbytes)
    completes = mbarrier_at(barrier)
    if completes.block is not target:
        fail("st.async to one block with an mbarrier of another")

    target.shared_transfer(current_thread(), "st_async", offset, words.nbytes)

    def land(thread):
        target.shared_root.window(offset, words.nbytes, kind="write", thread=thread)[:] = words.view(np.uint8)

    completes.start_copy(words.nbytes, land)


def st_async_u32(address, value, barrier):
    """st_async_u32(address, value, barrier): store a uint32 in another block's shared memory and complete 4 bytes on an mbarrier of that
    block; address and barrier are shared::cluster addresses. PTX ISA, "st.async"."""
    store_asynchronously(address, np.array([int(value) & 0xFFFFFFFF], np.uint32), barrier)


def st_async_v4_f32(address, first, second, third, fourth, barrier):
    """st_async_v4_f32(address, first, second, third, fourth, barrier): as st_async_u32, with four float32, 16 bytes. PTX ISA, "st.async",
    vector v4."""
    store_asynchronously(address, np.array([first, second, third, fourth], np.float32), barrier)


def elect_sync(mask):
    """elect_sync(mask) -> uint32: 1 in one lane of `mask`, 0 in its other lanes. PTX ISA, "elect.sync"."""
    return collective("elect", None, lambda values: {lane: int(lane == min(values)) for lane in values}, mask)


cluster_ctarank = instruction("mov.u32 $0, %cluster_ctarank;", "r", emulation=cluster_ctarank)
cluster_nctarank = instruction("mov.u32 $0, %cluster_nctarank;", "r", emulation=cluster_nctarank)
cluster_ctaid_x, cluster_ctaid_y, cluster_ctaid_z = (make_cluster_ctaid(axis) for axis in "xyz")
barrier_cluster_arrive = instruction(
    "barrier.cluster.arrive.release.aligned;", emulation=barrier_cluster_arrive, touches_memory=True, convergent=True
)
barrier_cluster_arrive_relaxed = instruction(
    "barrier.cluster.arrive.relaxed.aligned;", emulation=barrier_cluster_arrive_relaxed, touches_memory=True, convergent=True
)
barrier_cluster_wait = instruction(
    "barrier.cluster.wait.acquire.aligned;", emulation=barrier_cluster_wait, touches_memory=True, convergent=True
)
mapa = instruction("mapa.shared::cluster.u32 $0, $1, $2;", "r", "rr", emulation=mapa)
ld_shared_cluster_u32 = instruction("ld.shared::cluster.u32 $0, [$1];", "r", "r", emulation=ld_shared_cluster_u32, touches_memory=True)
ld_shared_cluster_f32 = instruction("ld.shared::cluster.f32 $0, [$1];", "f", "r", emulation=ld_shared_cluster_f32, touches_memory=True)
ld_shared_cluster_v4_f32 = instruction(
    "ld.shared::cluster.v4.f32 {$0, $1, $2, $3}, [$4];", "ffff", "r", emulation=ld_shared_cluster_v4_f32, touches_memory=True
)
st_shared_cluster_u32 = instruction("st.shared::cluster.u32 [$0], $1;", "", "rr", emulation=st_shared_cluster_u32, touches_memory=True)
st_shared_cluster_f32 = instruction("st.shared::cluster.f32 [$0], $1;", "", "rf", emulation=st_shared_cluster_f32, touches_memory=True)
st_async_u32 = instruction(
    "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [$0], $1, [$2];", "", "rrr", emulation=st_async_u32, touches_memory=True
)
st_async_v4_f32 = instruction(
    "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [$0], {$1, $2, $3, $4}, [$5];",
    "",
    "rffffr",
    emulation=st_async_v4_f32,
    touches_memory=True,
)
elect_sync = instruction(
    "{ .reg .pred elected; elect.sync _|elected, $1; selp.b32 $0, 1, 0, elected; }", "r", "r", emulation=elect_sync, convergent=True
)
