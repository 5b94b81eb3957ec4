"""The one interface of all KV cache policies: who may keep how many tokens where.

A policy decides and counts; it holds no keys and values (`kv_cache.KVCache` does) and knows neither their layout nor their dtype. The
kernels see its decisions as a block table: token t of a sequence lies in block `table[t // block_size]` at offset `t % block_size`.

The life of a sequence:

    cached = policy.reserve(name, prompt, max_tokens)   the first `cached` tokens of the prompt are there already
    ... the prompt's other tokens are computed ...
    policy.commit(name, len(prompt))                    from now on others may share them
    policy.make_room(name, len(prompt) + 1)             the block table may change: read it again
    policy.take_copies()                                blocks to copy on the device before the next step
    ... a decode step ...
    policy.append(name, [token])                        the token is known
    policy.fork(name, other)                            a second continuation of the same tokens
    policy.free(name)

Every call either does all that it says or raises and changes nothing. Source of the division of labour: Kwon et al., "Efficient Memory
Management for Large Language Model Serving with PagedAttention", 2023, section 4.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from collections.abc import Sequence as Many
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """Where the cache's bytes are. What is in neither `allocated` nor `retained` is free."""

    total: int  # of the whole cache
    allocated: int  # given to sequences that run
    holding: int  # of these, filled with tokens; a token that several sequences share counts once
    retained: int = 0  # kept for a prompt that may come again, and given away as soon as somebody else needs them
    promised: int = 0  # not allocated yet, but sure to be there for the sequences that run

    @property
    def wasted(self) -> int:
        """Bytes that are allocated and hold no token."""
        return self.allocated - self.holding

    @property
    def waste(self) -> float:
        """The wasted share of the allocated bytes, 0 to 1; 0 when none is allocated."""
        return self.wasted / self.allocated if self.allocated else 0.0


@dataclass(slots=True)
class PrefixHits:
    """How much of the prompts so far was in the cache already."""

    tokens_asked: int = 0
    tokens_hit: int = 0

    @property
    def rate(self) -> float:
        """The share of prompt tokens that need not be computed, 0 to 1."""
        return self.tokens_hit / self.tokens_asked if self.tokens_asked else 0.0


class CachePolicy(ABC):
    """What the engine asks of a KV cache. A sequence is named by any hashable value, its request id for example."""

    block_size: int  # tokens in an entry of a block table
    num_blocks: int  # entries of block tables are below this
    prefix_hits: PrefixHits

    @property
    @abstractmethod
    def max_sequence_tokens(self) -> int:
        """The longest sequence that the empty cache could hold."""

    @abstractmethod
    def reserve(self, sequence: Hashable, token_ids: Many[int], max_tokens: int = 0, tenant: str = "") -> int:
        """Admits a sequence with its prompt, at least one token, and makes room for it.

        Returns how many leading tokens are in the cache already and need no computation, always fewer than all: the last token has
        to be computed for its logits. max_tokens: so many further tokens will find room for certain; 0 promises nothing, and then a
        later `make_room` may raise OutOfMemoryError, upon which some sequence has to be preempted. tenant: only prompts of one tenant
        share memory, so that the time a prompt takes tells nobody what others have asked.

        Raises OutOfMemoryError when there is no room now, CacheError when the sequence is known already or the prompt is empty.
        """

    @abstractmethod
    def make_room(self, sequence: Hashable, num_tokens: int) -> bool:
        """Makes room for `num_tokens` tokens of the sequence in all, and makes the sequence the only one that writes behind its known
        tokens: a block there that it shares is copied first. Returns whether its block table has changed.

        Raises OutOfMemoryError, or CacheError for a stranger.
        """

    @abstractmethod
    def append(self, sequence: Hashable, token_ids: Many[int]) -> bool:
        """Notes further tokens of the sequence, with room for them as `make_room` makes it; returns and raises the same."""

    @abstractmethod
    def fork(self, parent: Hashable, child: Hashable) -> None:
        """Admits `child` with the tokens and the promise of `parent`; both go on by themselves. Raises as `reserve` does."""

    @abstractmethod
    def free(self, sequence: Hashable) -> None:
        """Takes back all that the sequence holds. CacheError for a stranger, so that no double free passes unseen."""

    @abstractmethod
    def tokens(self, sequence: Hashable) -> list[int]:
        """The known tokens of a sequence. CacheError for a stranger."""

    @abstractmethod
    def table(self, sequence: Hashable) -> list[int]:
        """The block table of a sequence, a copy. CacheError for a stranger."""

    @abstractmethod
    def usage(self) -> CacheUsage:
        """Bytes by what they are used for."""

    @abstractmethod
    def take_copies(self) -> list[tuple[int, int]]:
        """(source, destination) of the blocks to copy on the device, one after the other; each is told once.

        The copies come after the forward that computes what is in the sources, and before the next one that uses the destinations.
        """

    @abstractmethod
    def check(self) -> None:
        """Verifies every invariant; CacheError says which one is broken. For tests and for debugging: it reads everything."""

    def preempt(self, sequence: Hashable) -> list[int]:
        """Takes the memory of a sequence away and returns its tokens: what `reserve` is to be given when it comes back."""
        token_ids = self.tokens(sequence)
        self.free(sequence)
        return token_ids

    def commit(self, sequence: Hashable, num_tokens: int) -> None:  # noqa: B027 - a policy that shares nothing does nothing
        """Says that the first `num_tokens` tokens are in the cache for every forward launched from now on: they may be shared."""

    def forget_prefixes(self) -> None:  # noqa: B027 - as above
        """Nothing in the cache may be found by a new prompt any more, because it may never have been computed."""

    def forget_counts(self) -> None:
        """Counts and estimates begin anew: what was asked so far was a warm-up's, and says nothing of a user's traffic."""
        self.prefix_hits = PrefixHits()
