"""Fences between what threads do and what the copy engine and wgmma do. PTX ISA, "membar / fence"."""

from greenlet import getcurrent

from minllm.ptx.instruction import instruction
from minllm.sim.asynchrony import fence_asynchronous_view


def fence_proxy_async():
    """fence_proxy_async(): what this thread has stored to shared memory becomes visible to bulk copies and wgmma. It stands between the
    stores and the barrier after which another thread starts the copy or the product. PTX ISA, "fence.proxy.async"."""
    fence_asynchronous_view(getcurrent())


def fence_proxy_tensormap_acquire(tensor_map):
    """fence_proxy_tensormap_acquire(tensor_map): this thread's copies see the tensor map as it now is in global memory, not as it was
    when the copy engine last read that place. Once a block, before its first copy. PTX ISA, "fence.proxy.tensormap"."""


def prefetch_tensormap(tensor_map):
    """prefetch_tensormap(tensor_map): fetch a tensor map before it is needed. PTX ISA, "prefetch", .tensormap."""


fence_proxy_async = instruction("fence.proxy.async.shared::cta;", emulation=fence_proxy_async, touches_memory=True)
fence_proxy_tensormap_acquire = instruction(
    "fence.proxy.tensormap::generic.acquire.gpu [$0], 128;", "", "l", emulation=fence_proxy_tensormap_acquire, touches_memory=True
)
prefetch_tensormap = instruction("prefetch.tensormap [$0];", "", "l", emulation=prefetch_tensormap, touches_memory=True)
