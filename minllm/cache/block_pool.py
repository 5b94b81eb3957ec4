"""The block pool: which blocks are free, and how many sequences hold each of the others.

The cache of a layer is a row of equal blocks of `block_size` tokens (PagedAttention, Kwon et al. 2023, section 4.1). Sequences that
begin with the same tokens hold the same blocks; a block is free again when its last holder has let go of it and it was given back.
The pool only counts; which tokens lie in a block is the policy's business, the memory itself `kv_cache.KVCache`'s.
"""

import heapq

from minllm.errors import CacheError, OutOfMemoryError


def blocks_needed(num_tokens: int, block_size: int) -> int:
    """The number of blocks that `num_tokens` tokens fill, the last one perhaps partly."""
    return -(-num_tokens // block_size)


class BlockPool:
    """Counts the holders of the blocks 0 to `num_blocks` - 1.

    A block is free, or held (by one or more), or idle: nobody holds it, and it was not given back yet because its contents may be of use.
    The lowest free numbers go first: the blocks of a sequence then mostly lie side by side, which a cache in ordinary memory likes.
    """

    def __init__(self, num_blocks: int):
        if num_blocks < 1:
            raise OutOfMemoryError(f"a KV cache of {num_blocks} blocks holds nothing: at least 1 block is needed; free some memory")
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks))  # a heap: the lowest number first; a sorted list is one already
        self._is_free = [True] * num_blocks
        self._holders = [0] * num_blocks
        self._num_held = 0

    @property
    def num_free(self) -> int:
        """How many blocks can be taken."""
        return len(self._free)

    @property
    def num_held(self) -> int:
        """How many blocks have a holder."""
        return self._num_held

    @property
    def num_idle(self) -> int:
        """How many blocks have no holder and were not given back."""
        return self.num_blocks - len(self._free) - self._num_held

    def is_free(self, block: int) -> bool:
        """Whether a block can be taken."""
        return self._is_free[block]

    def is_idle(self, block: int) -> bool:
        """Whether nobody holds a block that was not given back."""
        return not self._is_free[block] and self._holders[block] == 0

    def holders(self, block: int) -> int:
        """How many hold this block."""
        return self._holders[block]

    def take(self) -> int:
        """The lowest free block, held once from now on. OutOfMemoryError when none is free."""
        if not self._free:
            raise OutOfMemoryError(f"all {self.num_blocks} blocks of the KV cache are taken: free a sequence first")
        block = heapq.heappop(self._free)
        self._is_free[block] = False
        self._holders[block] = 1
        self._num_held += 1
        return block

    def hold(self, block: int) -> None:
        """One more holder of a block that is held or idle. CacheError for a free one."""
        if self._is_free[block]:
            raise CacheError(f"block {block} is free: nobody can share what is in it; take() gives a free block")
        self._num_held += self._holders[block] == 0
        self._holders[block] += 1

    def release(self, block: int) -> bool:
        """One holder less; True when none is left. CacheError when there was none."""
        if self._holders[block] == 0:
            raise CacheError(f"block {block} has no holder: it was released before")
        self._holders[block] -= 1
        self._num_held -= self._holders[block] == 0
        return self._holders[block] == 0

    def give_back(self, block: int) -> None:
        """An idle block is free. CacheError for one that is held, or free already."""
        if self._holders[block] or self._is_free[block]:
            state = "free already" if self._is_free[block] else f"held by {self._holders[block]}"
            raise CacheError(f"block {block} cannot be given back: it is {state}")
        self._is_free[block] = True
        heapq.heappush(self._free, block)
