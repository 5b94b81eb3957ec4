"""The interface of KV cache policies, which assign the cache's blocks to sequences.

A policy decides and counts; it holds no keys and values (`kv_cache.KVCache` does) and does not depend on their layout or dtype. Kernels get
its decisions as a block table: token t of a sequence is in block `table[t // block_size]` at offset `t % block_size`.

The life of a sequence:

    cached = policy.reserve(name, prompt, max_tokens)   the first `cached` tokens of the prompt are already in the cache
    ... the prompt's other tokens are computed ...
    policy.commit(name, len(prompt))                    from now on other sequences may share them
    policy.make_room(name, len(prompt) + 1)             the block table may change: read it again
    policy.slide(name, start, end)                      a step computes these positions: local blocks are freed and taken
    policy.take_copies()                                blocks to copy on the device before the next step
    ... a decode step ...
    policy.append(name, [token])                        the token is known
    policy.trim(name, num_tokens)                       drafts were rejected: release the room beyond num_tokens
    policy.fork(name, other)                            a second continuation of the same tokens
    policy.free(name)

A call that raises changes nothing. Source of this division: Kwon et al., "Efficient Memory Management for Large Language Model Serving with
PagedAttention", 2023, section 4.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from collections.abc import Sequence as Many
from dataclasses import dataclass

from minllm.cache.window_blocks import WindowBlocks


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """The cache's bytes by use. Bytes that are neither `allocated` nor `retained` are free."""

    total: int  # the whole cache
    allocated: int  # bytes of running sequences
    holding: int  # the part of `allocated` that tokens fill; a token that several sequences share counts once
    retained: int = 0  # kept for later prompts (prefix caching) until running sequences need them
    promised: int = 0  # not allocated yet, but guaranteed to running sequences

    @property
    def wasted(self) -> int:
        """Bytes that are allocated and hold no token."""
        return self.allocated - self.holding

    @property
    def waste(self) -> float:
        """The wasted share of the allocated bytes, 0 to 1; 0 if none are allocated."""
        return self.wasted / self.allocated if self.allocated else 0.0


@dataclass(slots=True)
class PrefixHits:
    """Prompt tokens so far, and how many of them were found in the cache."""

    tokens_asked: int = 0
    tokens_hit: int = 0

    @property
    def rate(self) -> float:
        """The share of prompt tokens that were found in the cache, 0 to 1."""
        return self.tokens_hit / self.tokens_asked if self.tokens_asked else 0.0


class CachePolicy(ABC):
    """The engine's interface to a KV cache. A sequence's name is any hashable value, for example its request id."""

    block_size: int  # tokens per block
    num_blocks: int  # entries of block tables are less than this
    prefix_hits: PrefixHits
    windows: WindowBlocks | None = None  # local blocks of layers with a sliding window; None: these layers keep the whole context too

    @property
    @abstractmethod
    def max_sequence_tokens(self) -> int:
        """The length of the longest sequence that the empty cache could hold, in tokens."""

    @abstractmethod
    def reserve(self, sequence: Hashable, token_ids: Many[int], max_tokens: int = 0, tenant: str = "") -> int:
        """Admit a sequence with its prompt, at least one token, and make room for it.

        Returns the number of leading tokens that are already in the cache; always fewer than all, because the last token must be
        computed for its logits. max_tokens: further tokens that are guaranteed to fit. 0 means no guarantee: a later `make_room` may raise
        OutOfMemoryError, and then a sequence must be preempted. tenant: only prompts of one tenant share memory, so that response times
        do not reveal other tenants' prompts.

        Raises OutOfMemoryError if there is no room now, CacheError if the sequence is already known or the prompt is empty.
        """

    @abstractmethod
    def make_room(self, sequence: Hashable, num_tokens: int) -> bool:
        """Make room for `num_tokens` tokens in all; returns whether the block table changed.

        A shared block to which it will write is replaced by a copy. Raises OutOfMemoryError, or CacheError for an unknown sequence.
        """

    @abstractmethod
    def append(self, sequence: Hashable, token_ids: Many[int]) -> bool:
        """Record further tokens of the sequence, after `make_room` for them; returns and raises the same."""

    @abstractmethod
    def room(self, sequence: Hashable) -> int:
        """The number of tokens of a sequence that may be written now. Raises CacheError for an unknown sequence."""

    @abstractmethod
    def trim(self, sequence: Hashable, num_tokens: int) -> None:
        """Release the room of a sequence beyond `num_tokens` tokens and its known ones. Raises CacheError for an unknown sequence."""

    @abstractmethod
    def fork(self, parent: Hashable, child: Hashable) -> None:
        """Admit `child` with the tokens and promise of `parent`. Raises as `reserve` does."""

    @abstractmethod
    def free(self, sequence: Hashable) -> None:
        """Free everything that the sequence holds. Raises CacheError for an unknown sequence, which also detects a double free."""

    @abstractmethod
    def tokens(self, sequence: Hashable) -> list[int]:
        """The known tokens of a sequence. Raises CacheError for an unknown sequence."""

    @abstractmethod
    def table(self, sequence: Hashable) -> list[int]:
        """A copy of a sequence's block table. Raises CacheError for an unknown sequence."""

    @abstractmethod
    def usage(self) -> CacheUsage:
        """The cache's bytes by use."""

    @abstractmethod
    def take_copies(self) -> list[tuple[int, int]]:
        """(source, destination) of blocks to copy on the device, in order; each pair is returned once.

        Copy after the forward that computes the sources' contents, and before the next forward that uses the destinations.
        """

    @abstractmethod
    def check(self) -> None:
        """Verify all invariants; raises CacheError that names the broken one. Slow: for tests and debugging."""

    def preempt(self, sequence: Hashable) -> list[int]:
        """Free a sequence and return its tokens, to admit it again by `reserve`."""
        token_ids = self.tokens(sequence)
        self.free(sequence)
        return token_ids

    def commit(self, sequence: Hashable, num_tokens: int) -> None:  # noqa: B027 - a policy that shares nothing does nothing
        """Allow other sequences to share the first `num_tokens` tokens, which are in the cache."""

    def take_local_copies(self) -> list[tuple[int, int]]:
        """The same as take_copies for local blocks."""
        return [] if self.windows is None else self.windows.take_copies()

    def begin_step(self) -> None:
        """Another step is planned: free what no later step reads."""
        if self.windows is not None:
            self.windows.begin_step()

    def slide(self, sequence: Hashable, start: int, end: int) -> None:
        """A step computes positions `start` to `end` of a sequence, for which there is room."""
        if self.windows is not None:
            self.windows.slide(sequence, start, end)

    def forget_prefixes(self) -> None:  # noqa: B027 - as above
        """Empty the prefix cache, because its contents may never have been computed."""

    def forget_counts(self) -> None:
        """Reset counts and estimates after a warm-up, because its prompts are not a user's traffic."""
        self.prefix_hits = PrefixHits()
