"""Prefix caching: a prompt reuses the keys and values of an earlier prefix.

Only full blocks are shared, because the last, partly filled block of a sequence is still being written. At least the last token of a prompt
is always computed, even if the whole prompt is cached, because its logits are needed and the cache does not hold them. A block can be
found once its tokens are committed. Without holders it stays cached until memory runs short; then the least recently released block is
evicted first (LRU).

An index finds blocks by their tokens: `hash_chain.HashChain` as in vLLM, `radix_tree.RadixTree` as in SGLang.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Hashable
from collections.abc import Sequence as Many

from minllm.cache.paged import PagedPolicy
from minllm.cache.paged_check import require
from minllm.cache.window_blocks import WindowBlocks
from minllm.errors import CacheError


class PrefixIndex(ABC):
    """Finds blocks by their tokens and all tokens before them. It owns no memory and counts no holders."""

    @abstractmethod
    def find(self, token_ids: Many[int], tenant: str) -> list[int]:
        """The blocks of the longest known prefix of these tokens."""

    @abstractmethod
    def insert(self, token_ids: Many[int], tenant: str, blocks: Many[int]) -> None:
        """Add full blocks: `blocks[i]` holds the i-th block_size tokens. A block with equal contents already in the index stays."""

    @abstractmethod
    def remove(self, block: int) -> list[int]:
        """Remove a block, and the blocks that cannot be found without it; returns all removed blocks."""

    @abstractmethod
    def __contains__(self, block: int) -> bool:
        """Whether a block can be found."""

    @abstractmethod
    def clear(self) -> None:
        """Remove all blocks."""


class PrefixSharingPolicy(PagedPolicy):
    """Shares paged blocks that prompts find through `index`. See PagedPolicy for the other parameters."""

    def __init__(
        self, index: PrefixIndex, num_blocks: int, block_size: int, bytes_per_block: int | None = None, windows: WindowBlocks | None = None
    ):
        super().__init__(num_blocks, block_size, bytes_per_block, windows)
        self.index = index
        self._idle: OrderedDict[int, None] = OrderedDict()  # cached blocks without a holder, least recently used first

    def commit(self, sequence: Hashable, num_tokens: int) -> None:
        """See CachePolicy: other prompts can find the full blocks of these tokens from now on."""
        holding = self._holding(sequence)
        if num_tokens > len(holding.token_ids):
            raise CacheError(f"{num_tokens} tokens of {sequence!r} cannot be committed: {len(holding.token_ids)} are known")
        full = num_tokens // self.block_size
        if full > holding.committed_blocks:
            holding.committed_blocks = full
            self.index.insert(holding.token_ids[: full * self.block_size], holding.tenant, holding.blocks[:full])

    def forget_prefixes(self) -> None:
        """See CachePolicy."""
        self.index.clear()
        self._give_back(list(self._idle))
        self._idle.clear()

    def check(self) -> None:
        """See CachePolicy."""
        super().check()
        idle = {block for block in range(self.num_blocks) if self.pool.is_idle(block)}
        require(set(self._idle) == idle, f"{list(self._idle)} are not the idle blocks")
        for block in range(self.num_blocks):
            require(not (block in self.index and self.pool.is_free(block)), f"block {block} is free and can be found")

    def _find_prefix(self, token_ids: Many[int], tenant: str) -> list[int]:
        most = (len(token_ids) - 1) // self.block_size * self.block_size  # the last token is always computed
        found = self.index.find(token_ids[:most], tenant)
        return found if self.windows is None else found[: self.windows.usable(found)]

    def _hold(self, blocks: Many[int]) -> None:
        super()._hold(blocks)
        revived = [block for block in blocks if block in self._idle]
        for block in revived:
            del self._idle[block]
        self._fill(revived, len(revived) * self.block_size)

    def _let_go(self, blocks: Many[int]) -> None:
        kept = dict.fromkeys(block for block in blocks if block in self.index)
        super()._let_go([block for block in blocks if block not in kept])
        self._idle.update(kept)

    def _take(self, count: int) -> list[int]:
        while self.pool.num_free < count and self._idle:
            self._evict(next(iter(self._idle)))
        return super()._take(count)

    def _evict(self, block: int) -> None:
        lost = [one for one in self.index.remove(block) if one in self._idle]  # others are held, and become free when they are released
        for one in lost:
            del self._idle[one]
        self._give_back(lost)
