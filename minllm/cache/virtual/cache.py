"""The memory of the virtual cache: contiguous addresses, with pages mapped as needed.

There are two ranges of addresses, one for keys and one for values, each an array

    [slots, tokens per slot, layers, kv_heads, head_dim]

A slot holds one sequence from its first token to its last, so kernels need no block table beyond the slot's number. The layers of a token
are adjacent, so a page of 2 MB holds 32 tokens of Llama-3.1-8B (64 KiB of keys per token over 32 layers); with one array per layer it
would hold 1,024. On average half of a sequence's last page is empty. Prabhu et al., "vAttention: Dynamic Memory Management for Serving
LLMs without PagedAttention", arXiv 2405.04437, sections 5 and 6.2.

Decode attention reads this layout 1 to 5 % slower than a contiguous cache (`minllm bench virtual`, recorded in docs/results.md). The cause
is the layout, not the mapping: one layer's keys of consecutive tokens, 2 KiB each, are 64 KiB apart, on 32 times as many pages.

Kernels get the view [blocks, block_size, kv_heads, head_dim] of a layer, with tokens layers * kv_heads * head_dim elements apart. A slot is
one block, or several of equal size if one block would have too many elements for the kernels' 32-bit offsets.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minllm.cache.kv_cache import CacheShape
from minllm.errors import InvalidOptionError, MinLLMError
from minllm.kernels.attention.common.arguments import MOST_BLOCK_ELEMENTS
from minllm.kernels.kv.copy_rounds import in_rounds
from minllm.kernels.kv.layout import layer_of
from minllm.ops.batch import LayerCache
from minllm.runtime.virtual_memory import PagePool, VirtualRange


@dataclass(frozen=True, slots=True)
class VirtualLayout:
    """The layout of slots in pairs of pages: one of keys and one of their values."""

    num_slots: int
    slot_tokens: int  # tokens per slot; they fill whole pages, so that no page belongs to two slots
    block_size: int
    token_bytes: int  # bytes of one token's keys over all layers, and of its values
    page_bytes: int

    @property
    def pair_bytes(self) -> int:
        """Bytes of a pair of pages."""
        return 2 * self.page_bytes

    @property
    def slot_pairs(self) -> int:
        """Pairs of pages per full slot."""
        return self.slot_tokens * self.token_bytes // self.page_bytes

    @property
    def blocks_per_slot(self) -> int:
        """Entries of a sequence's block table."""
        return self.slot_tokens // self.block_size

    def pairs_for(self, tokens: int) -> int:
        """The number of pairs of pages for the first `tokens` tokens of a slot."""
        return -(-min(tokens, self.slot_tokens) * self.token_bytes // self.page_bytes)


def virtual_layout(shape: CacheShape, num_slots: int, max_tokens: int, page_bytes: int) -> VirtualLayout:
    """The layout of slots for up to `max_tokens` tokens, rounded up to whole pages, since addresses take no memory.

    Raises InvalidOptionError for a quantised cache, which has several arrays of codes and scales.
    """
    if shape.format is not None:
        raise InvalidOptionError("kv_cache_policy='virtual' keeps keys and values as they are: leave kv_cache_dtype at 'auto', or page")
    elements = shape.num_layers * shape.kv_heads * shape.head_dim
    token_bytes = elements * shape.dtype.itemsize
    step = page_bytes // math.gcd(page_bytes, token_bytes)  # the fewest tokens that fill whole pages
    slot_tokens = -(-max_tokens // step) * step
    parts = next(n for n in range(1, slot_tokens + 1) if slot_tokens % n == 0 and slot_tokens // n * elements <= MOST_BLOCK_ELEMENTS)
    return VirtualLayout(num_slots, slot_tokens, slot_tokens // parts, token_bytes, page_bytes)


class VirtualKVCache:
    """Keys and values of all layers, with the interface of kv_cache.KVCache; virtual.VirtualPolicy maps its pages."""

    def __init__(self, backend: Any, shape: CacheShape, num_slots: int, max_tokens: int, num_pairs: int):
        """backend: from runtime/cuda_pages.py or host_pages.py. num_pairs: the most pairs of pages that may be mapped at a time."""
        self.layout = layout = virtual_layout(shape, num_slots, max_tokens, backend.page_bytes)
        self.shape = replace(shape, block_size=layout.block_size)
        self.num_blocks, self.num_pairs = num_slots * layout.blocks_per_slot, num_pairs
        self.room = None  # for residual windows, which it has not
        self.pages = PagePool(backend, 2 * num_pairs)
        slot_bytes = layout.slot_pairs * layout.page_bytes
        self.keys, self.values = (VirtualRange(self.pages, num_slots * slot_bytes) for _ in range(2))
        whole = (self.num_blocks, layout.block_size, shape.num_layers, shape.kv_heads, shape.head_dim)
        keys, values = (memory.array(whole, shape.dtype) for memory in (self.keys, self.values))
        self.layers = [LayerCache(layer_of(keys, i), layer_of(values, i)) for i in range(shape.num_layers)]
        by_page = (num_slots * layout.slot_pairs, layout.page_bytes)
        self._by_page = [memory.array(by_page, np.uint8) for memory in (self.keys, self.values)]

    def map(self, slot: int, first: int, count: int) -> None:
        """Map pairs of pages of a slot, all of them or none. Raises OutOfMemoryError or VirtualMemoryError."""
        place = slot * self.layout.slot_pairs + first
        self.keys.map(place, count)
        try:
            self.values.map(place, count)
        except MinLLMError:
            self.keys.unmap(place, count)
            raise

    def unmap(self, slot: int, first: int, count: int) -> None:
        """Unmap pairs of pages of a slot, after all kernels launched before have finished."""
        for memory in (self.keys, self.values):
            memory.unmap(slot * self.layout.slot_pairs + first, count)

    def copy_blocks(self, ops, copies: list[tuple[int, int]]) -> None:
        """Copy blocks, pairs (source, destination) in order; only pages that are mapped in both are copied."""
        pages = []
        for source, destination in copies:
            first, last = self._pages_of(source)
            away = self._pages_of(destination)[0] - first
            pages += [(page, page + away) for page in range(first, last) if self.keys.is_mapped(page) and self.keys.is_mapped(page + away)]
        for together in in_rounds(pages):
            pairs = ops.array(np.array(together, np.int32))
            for array in self._by_page:
                ops.copy_blocks(array, pairs)

    def close(self) -> None:
        """Free all memory and addresses; the layers become invalid."""
        self.keys.close()
        self.values.close()
        self.pages.trim()

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.layout.block_size

    @property
    def num_tokens(self) -> int:
        """The number of tokens that fit in all pages."""
        return self.num_bytes // (2 * self.layout.token_bytes)

    @property
    def num_bytes(self) -> int:
        """Bytes that the cache may take."""
        return self.num_pairs * self.layout.pair_bytes

    def _pages_of(self, block: int) -> tuple[int, int]:
        """The page numbers that a block touches: (first, one past the last)."""
        block_bytes, page_bytes = self.layout.block_size * self.layout.token_bytes, self.layout.page_bytes
        return block * block_bytes // page_bytes, -(-(block + 1) * block_bytes // page_bytes)
