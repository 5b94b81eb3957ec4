"""The size of the virtual cache: pages and slots."""

from typing import Any

from minllm.cache.capacity import CacheBudget
from minllm.cache.kv_cache import CacheShape
from minllm.cache.virtual.cache import VirtualKVCache, virtual_layout
from minllm.errors import OutOfMemoryError


def virtual_cache_that_fits(
    backend: Any, shape: CacheShape, budget: CacheBudget, max_num_seqs: int, max_model_len: int, most_addresses: int = 1 << 45
) -> VirtualKVCache:
    """A cache with up to `max_num_seqs` slots, and as many pages as fit the budget.

    backend: from runtime/cuda_pages.py or host_pages.py. most_addresses: the limit of addresses per range, in bytes, which may reduce the
    number of slots. Raises OutOfMemoryError if not even one pair of pages fits, InvalidOptionError for a quantised cache.
    """
    layout = virtual_layout(shape, max_num_seqs, max_model_len, backend.page_bytes)
    num_pairs = budget.num_bytes // layout.pair_bytes
    if num_pairs < 1:
        raise OutOfMemoryError(
            f"No memory is left for the KV cache: a page of keys and one of values take {layout.pair_bytes:,} bytes, and "
            f"{max(0, budget.num_bytes):,} are left: take a smaller model, or {budget.advice}."
        )
    num_slots = max(1, min(max_num_seqs, num_pairs, most_addresses // (layout.slot_pairs * layout.page_bytes)))
    return VirtualKVCache(backend, shape, num_slots, max_model_len, min(num_pairs, num_slots * layout.slot_pairs))
