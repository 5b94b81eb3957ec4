"""Prefix sharing: a prompt that begins like one before it finds the keys and values of that beginning in the cache.

Only full blocks are shared, because only they never change: the last, partly filled one of a sequence is still being written. At least the
last token of a prompt is always computed, even when all of it was seen before: its logits are needed, and the cache holds none. A block
becomes findable when its tokens are committed, stays so while sequences come and go, and when nobody holds it any more it is kept
until memory runs short; then the one that was let go of the longest time ago goes first (least recently used).

How blocks are found by what is in them is the index's business: `hash_chain.HashChain` as in vLLM, `radix_tree.RadixTree` as in SGLang.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Hashable
from collections.abc import Sequence as Many

from minllm.cache.paged import PagedPolicy
from minllm.cache.paged_check import require
from minllm.errors import CacheError


class PrefixIndex(ABC):
    """Finds blocks by the tokens in them and all tokens before. It holds no memory and counts no holders."""

    @abstractmethod
    def find(self, token_ids: Many[int], tenant: str) -> list[int]:
        """The blocks of the longest known beginning of these tokens, in whole blocks."""

    @abstractmethod
    def insert(self, token_ids: Many[int], tenant: str, blocks: Many[int]) -> None:
        """Makes full blocks findable: `blocks[i]` holds the i-th block_size tokens. Where equal contents are known already, the block
        that holds them stays the one that is found."""

    @abstractmethod
    def remove(self, block: int) -> list[int]:
        """Forgets a block, and those that cannot be found without it; returns all that it forgot."""

    @abstractmethod
    def __contains__(self, block: int) -> bool:
        """Whether a block can be found."""

    @abstractmethod
    def clear(self) -> None:
        """Forgets everything."""


class PrefixSharingPolicy(PagedPolicy):
    """Paged blocks, found again through `index`. See PagedPolicy for the numbers."""

    def __init__(self, index: PrefixIndex, num_blocks: int, block_size: int, bytes_per_block: int | None = None):
        super().__init__(num_blocks, block_size, bytes_per_block)
        self.index = index
        self._idle: OrderedDict[int, None] = OrderedDict()  # findable blocks that nobody holds, the longest unused first

    def commit(self, sequence: Hashable, num_tokens: int) -> None:
        """See CachePolicy: full blocks of these tokens are findable from now on."""
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
        while self._idle:
            self.pool.give_back(self._idle.popitem()[0])

    def check(self) -> None:
        """See CachePolicy."""
        super().check()
        idle = {block for block in range(self.num_blocks) if self.pool.is_idle(block)}
        require(set(self._idle) == idle, f"{list(self._idle)} are not the idle blocks")
        for block in range(self.num_blocks):
            require(not (block in self.index and self.pool.is_free(block)), f"block {block} is free and can be found")

    def _find_prefix(self, token_ids: Many[int], tenant: str) -> list[int]:
        most = (len(token_ids) - 1) // self.block_size * self.block_size  # the last token is computed in any case
        return self.index.find(token_ids[:most], tenant)

    def _hold(self, block: int) -> None:
        super()._hold(block)
        if block in self._idle:
            del self._idle[block]
            self._fill(block, self.block_size)

    def _let_go(self, block: int) -> None:
        if block in self.index:
            self._idle[block] = None
        else:
            super()._let_go(block)

    def _take(self) -> int:
        if not self.pool.num_free and self._idle:
            self._evict(next(iter(self._idle)))
        return super()._take()

    def _evict(self, block: int) -> None:
        for lost in self.index.remove(block):
            if lost in self._idle:  # the others are held, and free once they are let go of
                del self._idle[lost]
                self.pool.give_back(lost)
