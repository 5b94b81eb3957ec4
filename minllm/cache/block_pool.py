"""The block pool: which blocks of the KV cache belong to which sequence.

The cache of a layer is a row of equal blocks of `block_size` tokens (PagedAttention, Kwon et al. 2023, section 4.1). A sequence owns
whole blocks, and its block table lists them in the order of its tokens: token t lies in block `table[t // block_size]` at offset
`t % block_size`. Under static batching a sequence reserves all blocks that it can ever need before its first token is computed, so that
a running batch never runs out, and gives them back when it ends. The pool only counts; the memory itself is `kv_cache.KVCache`.
"""

import heapq
from collections.abc import Hashable

from minllm.errors import BlockPoolError, OutOfMemoryError


def blocks_needed(num_tokens: int, block_size: int) -> int:
    """The number of blocks that `num_tokens` tokens fill, the last one perhaps partly."""
    return -(-num_tokens // block_size)


class BlockPool:
    """Hands out block numbers 0 to `num_blocks` - 1, each to one owner at a time.

    The lowest free numbers go first: the blocks of a sequence then mostly lie side by side, which a cache in ordinary memory likes.
    """

    def __init__(self, num_blocks: int):
        if num_blocks < 1:
            raise OutOfMemoryError(f"a KV cache of {num_blocks} blocks holds nothing: at least 1 block is needed; free some memory")
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks))  # a heap: the lowest number first; a sorted list is one already
        self._owned: dict[Hashable, list[int]] = {}

    @property
    def num_free(self) -> int:
        """How many blocks belong to nobody."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """How many blocks belong to somebody."""
        return self.num_blocks - len(self._free)

    def reserve(self, owner: Hashable, count: int) -> list[int]:
        """Gives `count` blocks to `owner` and returns its block table; takes nothing when it raises OutOfMemoryError or BlockPoolError."""
        if count < 0:
            raise BlockPoolError(f"{count} blocks were asked for owner {owner!r}: ask for 0 or more")
        if owner in self._owned:
            raise BlockPoolError(f"owner {owner!r} already holds {len(self._owned[owner])} blocks: release them before reserving again")
        if count > len(self._free):
            raise OutOfMemoryError(
                f"{count} KV cache blocks are needed for {owner!r} and {len(self._free)} of {self.num_blocks} are free: "
                "lower max_tokens, shorten the prompt, or give the cache more memory (gpu_memory_utilization)"
            )
        blocks = [heapq.heappop(self._free) for _ in range(count)]
        self._owned[owner] = blocks
        return list(blocks)

    def release(self, owner: Hashable) -> None:
        """Takes all blocks of `owner` back; BlockPoolError when it holds none, so that a double release cannot pass unseen."""
        if owner not in self._owned:
            raise BlockPoolError(f"owner {owner!r} holds no blocks: it never reserved any, or they were released before")
        for block in self._owned.pop(owner):
            heapq.heappush(self._free, block)

    def blocks_of(self, owner: Hashable) -> list[int]:
        """The block table of `owner`, empty when it holds none."""
        return list(self._owned.get(owner, ()))
