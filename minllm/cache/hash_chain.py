"""Blocks found by a chain of hashes, as in vLLM.

    h(0) = SHA-256(tenant),   h(i) = SHA-256(h(i - 1), the tokens of block i)

A block's hash thus stands for all tokens up to its end, and one table from hash to block is the whole index. Looking a prompt up hashes it
block by block until a hash is unknown. A hash that was easy to invert or to collide would let one user read what another one's tokens
left in the cache, so it is a cryptographic one, and the chain begins with the tenant: equal prompts of two tenants share nothing, and
the time that a prompt takes does not tell one of them what the other has asked.

Source: vLLM's automatic prefix caching (docs.vllm.ai, "Automatic Prefix Caching"), whose extra keys the tenant stands for.
"""

import hashlib
from collections.abc import Iterator
from collections.abc import Sequence as Many

import numpy as np

from minllm.cache.prefix_sharing import PrefixIndex


def chain_root(tenant: str) -> bytes:
    """What the first block of a tenant's texts is chained to."""
    return hashlib.sha256(b"tenant:" + tenant.encode(errors="surrogatepass")).digest()  # any str is a name


def block_hash(parent: bytes, token_ids: Many[int]) -> bytes:
    """The hash of a block with these tokens after the blocks that `parent` stands for."""
    return hashlib.sha256(parent + np.asarray(token_ids, "<i8").tobytes()).digest()


class HashChain(PrefixIndex):
    """A table from hash to block. Evicting a block in the middle of a chain hides the ones behind it until it is computed again."""

    def __init__(self, block_size: int):
        self.block_size = block_size
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}

    def find(self, token_ids: Many[int], tenant: str) -> list[int]:
        """See PrefixIndex."""
        # exercise: cache.find_prefix
        found = []
        for digest in self._chain(token_ids, chain_root(tenant)):
            if digest not in self._block_of:
                break
            found.append(self._block_of[digest])
        return found
        # end exercise

    def insert(self, token_ids: Many[int], tenant: str, blocks: Many[int]) -> None:
        """See PrefixIndex. Hashes of blocks that are findable are known: the chain goes on from the last of them."""
        known = next((i for i in range(len(blocks), 0, -1) if blocks[i - 1] in self._hash_of), 0)
        parent = self._hash_of[blocks[known - 1]] if known else chain_root(tenant)
        rest = self._chain(token_ids[known * self.block_size :], parent)
        for block, digest in zip(blocks[known:], rest, strict=True):
            if digest not in self._block_of:
                self._block_of[digest], self._hash_of[block] = block, digest

    def remove(self, block: int) -> list[int]:
        """See PrefixIndex."""
        del self._block_of[self._hash_of.pop(block)]
        return [block]

    def __contains__(self, block: int) -> bool:
        return block in self._hash_of

    def clear(self) -> None:
        """See PrefixIndex."""
        self._block_of.clear()
        self._hash_of.clear()

    def _chain(self, token_ids: Many[int], parent: bytes) -> Iterator[bytes]:
        """The hashes of the full blocks of these tokens, one after the other."""
        for start in range(0, len(token_ids) - self.block_size + 1, self.block_size):
            parent = block_hash(parent, token_ids[start : start + self.block_size])
            yield parent
