"""Make the requested preemption with its swap space, and decide when "auto" swaps on this machine."""

from types import SimpleNamespace
from typing import Any

from minllm.cache.kv_cache import KVCache
from minllm.cache.offload import SwapSpace
from minllm.cache.policy import CachePolicy
from minllm.cache.transfers import CudaTransfers, HostTransfers
from minllm.costs.swap import SwapRates, swap_wins
from minllm.engine.build.plan import Plan
from minllm.engine.scheduling.preemption import Preemption
from minllm.errors import InvalidOptionError
from minllm.machine.hardware import find_gpu

HOST_GB_S = 50  # page-locked copies over PCIe 5; `minllm bench swap` measures a machine's own
UNKNOWN_GPU = (0.3, 60)  # TB/s, TFLOP/s


def with_draft(cache: KVCache, draft: KVCache | None) -> Any:
    """The memory that a SwapSpace copies: a cache, and a draft model's cache under the same block tables."""
    if draft is None:
        return cache
    shapes = cache.shape, draft.shape
    both = SimpleNamespace(bytes_per_block=sum(shape.bytes_per_block for shape in shapes), residual_window=0)
    return SimpleNamespace(shape=both, arrays=cache.arrays + draft.arrays)


def make_preemption(plan: Plan, cache: KVCache, policy: CachePolicy, draft: KVCache | None) -> Preemption:
    """How sequences give up their memory. draft: a draft model's cache. Raises InvalidOptionError if the cache cannot be swapped."""
    options, config = plan.options, plan.config
    ops: Any = plan.ops  # with a GPU's streams and memory
    if options.preemption in ("recompute", "drop"):
        return Preemption(options.preemption)
    if options.kv_cache_policy == "virtual":
        raise InvalidOptionError(f'preemption={options.preemption!r} needs kv_cache_policy="paged" or "contiguous", not "virtual".')
    swapped = with_draft(cache, draft)
    if plan.device == "cpu":  # the same cores would copy or recompute, and copying is less work
        return Preemption(options.preemption, SwapSpace(swapped, policy, HostTransfers(), options.swap_space_bytes))
    swap_space = SwapSpace(swapped, policy, CudaTransfers(ops.memory, ops.core_stream, ops.pinned), options.swap_space_bytes)
    rates, kv_itemsize = _swap_rates(), cache.shape.bytes_per_head / cache.shape.head_dim
    return Preemption(options.preemption, swap_space, lambda num_tokens: swap_wins(config, num_tokens, rates, kv_itemsize))


def _swap_rates() -> SwapRates:
    """The rates of this GPU's data sheet; an unknown GPU counts as a small one."""
    from minllm.runtime.device import current_device

    gpu = find_gpu(current_device().name)
    if gpu is None:
        return SwapRates(HOST_GB_S, *UNKNOWN_GPU)
    return SwapRates(HOST_GB_S, gpu.ceiling_tb_s, gpu.measured_bf16_tflops or gpu.bf16_tflops or gpu.fp32_tflops)
