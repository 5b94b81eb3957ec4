"""Make the requested KV cache: its memory, and the policy that assigns it to sequences."""

from dataclasses import replace
from typing import Any

from minllm.cache.capacity import CacheBudget, budget_beside, local_blocks_that_fit, num_blocks_that_fit, one_block_per_sequence
from minllm.cache.contiguous import ContiguousPolicy
from minllm.cache.hash_chain import HashChain
from minllm.cache.kv_cache import CacheShape, KVCache
from minllm.cache.paged import PagedPolicy
from minllm.cache.policy import CachePolicy
from minllm.cache.prefix_sharing import PrefixSharingPolicy
from minllm.cache.radix_tree import RadixTree
from minllm.cache.residual_window import window_room
from minllm.cache.virtual.capacity import virtual_cache_that_fits
from minllm.cache.virtual.claims import READ_TILE
from minllm.cache.virtual.policy import VirtualPolicy
from minllm.cache.window_blocks import WindowBlocks, WindowRoom
from minllm.engine.build.plan import Plan
from minllm.engine.options import EngineOptions


def make_cache(plan: Plan, budget: CacheBudget) -> tuple[Any, CachePolicy]:
    """The memory for keys and values, and the policy that assigns it."""
    options, shape, wanted_len = plan.options, plan.shape, plan.wanted_len
    if options.kv_cache_policy == "virtual":
        return _make_virtual_cache(plan, budget)
    room = window_room(shape.residual_window, options.max_num_seqs, options.max_num_batched_tokens)
    budget = budget_beside(room, shape, budget)
    if options.kv_cache_policy == "contiguous":
        shape = one_block_per_sequence(shape, budget, wanted_len)
    local = None
    if shape.sliding is not None:
        local = local_blocks_that_fit(shape, shape.sliding, budget, options.max_num_seqs, options.max_num_batched_tokens, wanted_len)
        budget = replace(budget, num_bytes=budget.num_bytes - local.num_blocks * shape.bytes_per_local_block)
    num_blocks = num_blocks_that_fit(shape, budget, options.max_num_seqs, wanted_len)
    policy = _make_policy(options, shape, num_blocks, local)
    return KVCache(plan.ops, shape, num_blocks, room, 0 if local is None else local.num_blocks), policy


def _make_virtual_cache(plan: Plan, budget: CacheBudget) -> tuple[Any, CachePolicy]:
    sizes = dict(max_num_seqs=plan.options.max_num_seqs, max_model_len=plan.wanted_len)
    if plan.device == "cpu":
        from minllm.runtime.host_pages import MOST_ADDRESSES, HostPages

        cache = virtual_cache_that_fits(HostPages(), plan.shape, budget, **sizes, most_addresses=MOST_ADDRESSES)
    else:
        from minllm.runtime.cuda_pages import CudaPages

        cache = virtual_cache_that_fits(CudaPages(), plan.shape, budget, **sizes)
    if plan.options.speculative_config is not None:  # drafts are verified by the attention kernels for prompts, whose tiles are larger
        return cache, VirtualPolicy(cache, step_tile=READ_TILE)
    return cache, VirtualPolicy(cache)


def _make_policy(options: EngineOptions, shape: CacheShape, num_blocks: int, local: WindowRoom | None) -> CachePolicy:
    if options.kv_cache_policy == "contiguous":
        return ContiguousPolicy(num_blocks, shape.block_size, shape.bytes_per_block)
    sizes = num_blocks, shape.tokens_per_entry, shape.bytes_per_block
    windows = None
    if local is not None:
        windows = WindowBlocks(num_blocks, local, options.prefix_index is not None, shape.bytes_per_local_block)
    if options.prefix_index is None:
        return PagedPolicy(*sizes, windows)
    index = HashChain(shape.tokens_per_entry) if options.prefix_index == "hash" else RadixTree(shape.tokens_per_entry)
    return PrefixSharingPolicy(index, *sizes, windows)
