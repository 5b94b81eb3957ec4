"""Fences between threads and the async proxy. PTX ISA, "membar / fence".

The async proxy serves TMA (the tensor memory accelerator) and wgmma.
"""

from minllm.ptx.instruction import instruction
from minllm.sim.asynchrony import fence_asynchronous_view
from minllm.sim.thread import current_thread


def fence_proxy_async():
    """fence_proxy_async(): make this thread's stores to shared memory visible to TMA and wgmma. It belongs between the stores and the
    barrier after which a thread starts the copy or the wgmma. PTX ISA, "fence.proxy.async"."""
    fence_asynchronous_view(current_thread())


def fence_proxy_tensormap_acquire(tensor_map):
    """fence_proxy_tensormap_acquire(tensor_map): make this thread's copies use the tensor map's current contents in global memory instead
    of those that TMA has cached. It is needed once per block, before the first copy. PTX ISA, "fence.proxy.tensormap"."""


def prefetch_tensormap(tensor_map):
    """prefetch_tensormap(tensor_map): fetch a tensor map before it is needed. PTX ISA, "prefetch", .tensormap."""


fence_proxy_async = instruction("fence.proxy.async.shared::cta;", emulation=fence_proxy_async, touches_memory=True)
fence_proxy_tensormap_acquire = instruction(
    "fence.proxy.tensormap::generic.acquire.gpu [$0], 128;", "", "l", emulation=fence_proxy_tensormap_acquire, touches_memory=True
)
prefetch_tensormap = instruction("prefetch.tensormap [$0];", "", "l", emulation=prefetch_tensormap, touches_memory=True)
