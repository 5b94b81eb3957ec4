"""The block pool: which blocks are free, and the reference counts of the others.

The cache of a layer consists of equal blocks of `block_size` tokens (PagedAttention, Kwon et al. 2023, section 4.1). Sequences that begin
with the same tokens hold the same blocks; a block that its last holder has released becomes free when it is given back. The pool only
counts: policies track which tokens are in a block, and `kv_cache.KVCache` has the memory.
"""

import heapq
from collections.abc import Iterable

from minllm.errors import CacheError, OutOfMemoryError


def blocks_needed(num_tokens: int, block_size: int) -> int:
    """The number of blocks for `num_tokens` tokens; the last one may be partly filled."""
    # exercise: cache.blocks_needed
    return -(-num_tokens // block_size)
    # end exercise


class BlockPool:
    """Counts the holders of the blocks 0 to `num_blocks` - 1.

    A block is free, or held by one or more sequences, or idle: not held, but not given back yet because its contents may be reused.
    Free blocks with the lowest numbers are taken first, so that the blocks of a sequence are mostly adjacent, which improves locality.
    """

    def __init__(self, num_blocks: int):
        if num_blocks < 1:
            raise OutOfMemoryError(f"a KV cache of {num_blocks} blocks holds nothing: at least 1 block is needed; free some memory")
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks))  # a heap, as every sorted list is: the lowest number first
        self._is_free = [True] * num_blocks
        self._holders = [0] * num_blocks
        self._num_held = 0

    @property
    def num_free(self) -> int:
        """The number of free blocks."""
        return len(self._free)

    @property
    def num_held(self) -> int:
        """The number of held blocks."""
        return self._num_held

    @property
    def num_idle(self) -> int:
        """The number of idle blocks: not held and not given back."""
        return self.num_blocks - len(self._free) - self._num_held

    def is_free(self, block: int) -> bool:
        """Whether a block is free."""
        return self._is_free[block]

    def is_idle(self, block: int) -> bool:
        """Whether a block is idle: not held and not given back."""
        return not self._is_free[block] and self._holders[block] == 0

    def holders(self, block: int) -> int:
        """The number of holders of a block."""
        return self._holders[block]

    def take(self, count: int) -> list[int]:
        """Take the lowest free blocks, with one holder each. Raises OutOfMemoryError, and takes none, if fewer are free."""
        if count > len(self._free):
            raise OutOfMemoryError(
                f"{count} blocks of the KV cache are needed, and {len(self._free)} of {self.num_blocks} are free: free a sequence first"
            )
        blocks = [heapq.heappop(self._free) for _ in range(count)]
        for block in blocks:
            self._is_free[block] = False
            self._holders[block] = 1
        self._num_held += count
        return blocks

    def hold(self, blocks: Iterable[int]) -> None:
        """Add a holder to held or idle blocks. Raises CacheError for a free one."""
        for block in blocks:
            if self._is_free[block]:
                raise CacheError(f"block {block} is free: nobody can share what is in it; take() gives free blocks")
            self._num_held += self._holders[block] == 0
            self._holders[block] += 1

    def release(self, blocks: Iterable[int]) -> list[int]:
        """Remove a holder of each block; returns the blocks that have none left. Raises CacheError if one had none."""
        idle = []
        for block in blocks:
            if self._holders[block] == 0:
                raise CacheError(f"block {block} has no holder: it was released before")
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self._num_held -= 1
                idle.append(block)
        return idle

    def give_back(self, blocks: Iterable[int]) -> None:
        """Make idle blocks free. Raises CacheError for a held or free one."""
        for block in blocks:
            if self._holders[block] or self._is_free[block]:
                state = "free already" if self._is_free[block] else f"held by {self._holders[block]}"
                raise CacheError(f"block {block} cannot be given back: it is {state}")
            self._is_free[block] = True
            heapq.heappush(self._free, block)
