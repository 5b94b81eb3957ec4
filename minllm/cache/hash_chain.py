"""A prefix index by a chain of block hashes, as in vLLM.

    h(0) = SHA-256(tenant),   h(i) = SHA-256(h(i - 1), the tokens of block i)

A block's hash represents all tokens up to its end, so one table from hash to block is the whole index. A lookup hashes the prompt block by
block until a hash is unknown. With a weak hash, collisions would let one user read another user's cached keys and values, so the hash is
cryptographic. The chain begins with the tenant: equal prompts of two tenants share nothing, and response times do not reveal another
tenant's prompts.

Source: vLLM's automatic prefix caching (docs.vllm.ai, "Automatic Prefix Caching"); the tenant corresponds to its cache salt.
"""

import hashlib
from collections.abc import Iterator
from collections.abc import Sequence as Many

import numpy as np

from minllm.cache.prefix_sharing import PrefixIndex


def chain_root(tenant: str) -> bytes:
    """The start of the chain of a tenant's texts: h(0)."""
    return hashlib.sha256(b"tenant:" + tenant.encode(errors="surrogatepass")).digest()  # surrogatepass: any str is allowed


def block_hash(parent: bytes, token_ids: Many[int]) -> bytes:
    """The hash of a block with these tokens, after a block with the hash `parent`."""
    return hashlib.sha256(parent + np.asarray(token_ids, "<i8").tobytes()).digest()


class HashChain(PrefixIndex):
    """A table from hash to block. Evicting a block in the middle of a chain hides the blocks after it until it is recomputed."""

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
        """See PrefixIndex. The chain continues from the known hash of the last block that is already in the index."""
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
        """The hashes of the full blocks of these tokens, in order."""
        for start in range(0, len(token_ids) - self.block_size + 1, self.block_size):
            parent = block_hash(parent, token_ids[start : start + self.block_size])
            yield parent
