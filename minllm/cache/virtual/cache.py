"""The memory of the virtual cache: contiguous addresses for every sequence, and pages of memory behind those that hold tokens.

Two ranges of addresses, one for keys and one for values, each an array

    [slots, tokens of a slot, layers, kv_heads, head_dim]

A slot holds one sequence from its first token to its last, so kernels need no block table beyond the slot's number. The layers of a token
lie side by side: a page of 2 MB then holds 32 tokens of Llama-3.1-8B (64 KiB of keys a token over 32 layers) where an array a layer would
make it 1,024, and the last page of a sequence is half empty on average. Prabhu et al., "vAttention: Dynamic Memory Management for
Serving LLMs without PagedAttention", arXiv 2405.04437, sections 5 and 6.2.

On an H200 decode attention reads it at 95 to 99 % of the speed of a contiguous cache (`minllm bench virtual`: 1 x 8192 keys 2.24 TB/s
against 2.34, 64 x 4096 4.25 against 4.36, 256 x 1024 4.15 against 4.20). The layout costs that, not the mapping: in ordinary memory it
makes 0.972 at 64 x 4096, mapped 0.976, and with 8 and 4 layers side by side 0.985 and 0.993. A layer's 2 KiB of a token lie 64 KiB from
the next one's, and its keys are spread over 32 times as many pages.

Kernels see the view [blocks, block_size, kv_heads, head_dim] of a layer, whose tokens are layers * kv_heads * head_dim elements apart. A
slot is one block, or several of equal size where one would have too many elements for the kernels' 32-bit offsets.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minllm.cache.kv_cache import CacheShape
from minllm.errors import InvalidOptionError, MinLLMError
from minllm.kernels.attention.common.arguments import MOST_BLOCK_ELEMENTS
from minllm.kernels.kv.copy_blocks import in_rounds
from minllm.kernels.kv.layout import layer_of
from minllm.ops.protocol import LayerCache
from minllm.runtime.virtual_memory import PagePool, VirtualRange


@dataclass(frozen=True, slots=True)
class VirtualLayout:
    """Where the tokens of a slot lie. Pages are counted in pairs: the page of some tokens' keys, and the one of their values."""

    num_slots: int
    slot_tokens: int  # a multiple of what whole pages hold, so that no page belongs to two slots
    block_size: int
    token_bytes: int  # of one token's keys over all layers; its values take as many
    page_bytes: int

    @property
    def pair_bytes(self) -> int:
        """Bytes of a pair of pages."""
        return 2 * self.page_bytes

    @property
    def slot_pairs(self) -> int:
        """Pairs of pages that a full slot takes."""
        return self.slot_tokens * self.token_bytes // self.page_bytes

    @property
    def blocks_a_slot(self) -> int:
        """Entries of a sequence's block table."""
        return self.slot_tokens // self.block_size

    def pairs_for(self, tokens: int) -> int:
        """Pairs of pages that the first `tokens` tokens of a slot take."""
        return -(-min(tokens, self.slot_tokens) * self.token_bytes // self.page_bytes)


def virtual_layout(shape: CacheShape, num_slots: int, max_tokens: int, page_bytes: int) -> VirtualLayout:
    """The layout of slots for up to `max_tokens` tokens; addresses are rounded up generously, for they cost nothing.

    Raises InvalidOptionError for a quantised cache, whose tokens are no rows of numbers.
    """
    if shape.format is not None:
        raise InvalidOptionError("kv_cache_policy='virtual' keeps keys and values as they are: leave kv_cache_dtype at 'auto', or page")
    elements = shape.num_layers * shape.kv_heads * shape.head_dim
    token_bytes = elements * shape.dtype.itemsize
    step = page_bytes // math.gcd(page_bytes, token_bytes)  # tokens after which a token and a page begin together
    slot_tokens = -(-max_tokens // step) * step
    parts = next(n for n in range(1, slot_tokens + 1) if slot_tokens % n == 0 and slot_tokens // n * elements <= MOST_BLOCK_ELEMENTS)
    return VirtualLayout(num_slots, slot_tokens, slot_tokens // parts, token_bytes, page_bytes)


class VirtualKVCache:
    """Keys and values of all layers. The same interface to a forward as kv_cache.KVCache; virtual.VirtualPolicy maps its pages."""

    def __init__(self, backend: Any, shape: CacheShape, num_slots: int, max_tokens: int, num_pairs: int):
        """backend: runtime/cuda_pages.py's or host_pages.py's. num_pairs: of pages, the most that may be mapped at one time."""
        self.layout = layout = virtual_layout(shape, num_slots, max_tokens, backend.page_bytes)
        self.shape = replace(shape, block_size=layout.block_size)
        self.num_blocks, self.num_pairs = num_slots * layout.blocks_a_slot, num_pairs
        self.pages = PagePool(backend, 2 * num_pairs)
        slot_bytes = layout.slot_pairs * layout.page_bytes
        self.keys, self.values = (VirtualRange(self.pages, num_slots * slot_bytes) for _ in range(2))
        whole = (self.num_blocks, layout.block_size, shape.num_layers, shape.kv_heads, shape.head_dim)
        keys, values = (memory.array(whole, shape.dtype) for memory in (self.keys, self.values))
        self.layers = [LayerCache(layer_of(keys, i), layer_of(values, i)) for i in range(shape.num_layers)]
        by_page = (num_slots * layout.slot_pairs, layout.page_bytes)
        self._by_page = [memory.array(by_page, np.uint8) for memory in (self.keys, self.values)]

    def map(self, slot: int, first: int, count: int) -> None:
        """Put memory behind pairs of pages of a slot, all of them or none. Raises OutOfMemoryError or VirtualMemoryError."""
        place = slot * self.layout.slot_pairs + first
        self.keys.map(place, count)
        try:
            self.values.map(place, count)
        except MinLLMError:
            self.keys.unmap(place, count)
            raise

    def unmap(self, slot: int, first: int, count: int) -> None:
        """Take memory away, once no kernel that was launched before is running any more."""
        for memory in (self.keys, self.values):
            memory.unmap(slot * self.layout.slot_pairs + first, count)

    def copy_blocks(self, ops, copies: list[tuple[int, int]]) -> None:
        """Copies blocks, (source, destination) one after the other: those of their pages that both have."""
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
        """Give all memory and addresses back; the layers are of no use any more."""
        self.keys.close()
        self.values.close()
        self.pages.trim()

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self.layout.block_size

    @property
    def num_tokens(self) -> int:
        """How many tokens fit the pages, if they are filled."""
        return self.num_bytes // (2 * self.layout.token_bytes)

    @property
    def num_bytes(self) -> int:
        """Bytes that the cache may take."""
        return self.num_pairs * self.layout.pair_bytes

    def _pages_of(self, block: int) -> tuple[int, int]:
        """Page numbers of a range that a block touches, first and one past the last."""
        block_bytes, page_bytes = self.layout.block_size * self.layout.token_bytes, self.layout.page_bytes
        return block * block_bytes // page_bytes, -(-(block + 1) * block_bytes // page_bytes)
