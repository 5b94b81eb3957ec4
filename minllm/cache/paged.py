"""The paged policy: blocks are taken as needed, shared, and copied on write.

Only the last block of a sequence can be partly empty, so at most block_size - 1 tokens per sequence are wasted, independent of its length:
(block_size - 1) / 2 on average. A fork takes no memory until it writes: both sequences hold the same blocks, and the first one to write
after the shared tokens gets a copy of the last block if that is partly filled (copy on write). Source: Kwon et al., "Efficient Memory
Management for Large Language Model Serving with PagedAttention", 2023, sections 4.2 to 4.4.

A promise (`max_tokens` of `reserve`) is a number of blocks, not particular ones: admission counts the blocks that all running sequences may
still need. Promised blocks stay free until they are taken, or keep the contents of a prefix cache.
"""

from collections.abc import Hashable, Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace

from minllm.cache.block_pool import BlockPool, blocks_needed
from minllm.cache.paged_check import check_paged
from minllm.cache.policy import CachePolicy, CacheUsage, PrefixHits
from minllm.cache.window_blocks import WindowBlocks
from minllm.errors import CacheError, OutOfMemoryError


@dataclass(slots=True)
class Holding:
    """One sequence's tokens and blocks."""

    token_ids: list[int]
    blocks: list[int]
    promised_tokens: int  # tokens guaranteed to fit; 0 means no guarantee
    tenant: str
    committed_blocks: int = 0  # blocks that other sequences may find, if prefixes are shared


class PagedPolicy(CachePolicy):
    """Assigns blocks of `block_size` tokens from one pool. bytes_per_block: for `usage`. windows: the local blocks, if there are any."""

    def __init__(self, num_blocks: int, block_size: int, bytes_per_block: int | None = None, windows: WindowBlocks | None = None):
        if block_size < 1:
            raise CacheError(f"blocks of {block_size} tokens hold nothing: block_size is 1 or more, usually 16")
        self.pool = BlockPool(num_blocks)
        self.num_blocks, self.block_size = num_blocks, block_size
        self.bytes_per_block = block_size if bytes_per_block is None else bytes_per_block
        self.prefix_hits, self.windows = PrefixHits(), windows
        self._held: dict[Hashable, Holding] = {}
        self._promised: dict[Hashable, Holding] = {}  # the sequences in _held that have a promise
        self._filled = [0] * num_blocks  # tokens in each held block
        self._tokens_held = 0  # sum of _filled
        self._copies: list[tuple[int, int]] = []

    @property
    def max_sequence_tokens(self) -> int:
        """The tokens of all blocks, for one sequence."""
        return self.num_blocks * self.block_size

    def reserve(self, sequence: Hashable, token_ids: Many[int], max_tokens: int = 0, tenant: str = "") -> int:
        """See CachePolicy. Blocks that already hold the beginning of the prompt are shared."""
        if sequence in self._held:
            raise CacheError(f"sequence {sequence!r} has reserved already: free it before reserving again")
        if not len(token_ids) or max_tokens < 0:
            raise CacheError(f"{len(token_ids)} tokens and max_tokens={max_tokens} cannot be reserved: give 1 token and 0 or more")
        wanted = len(token_ids) + max_tokens
        self._check_length(sequence, wanted)
        found = self._find_prefix(token_ids, tenant)
        revived = sum(self.pool.holders(block) == 0 for block in found)
        needed = blocks_needed(wanted, self.block_size) - len(found)
        if needed + revived > self.num_available:
            raise self._no_room(sequence, wanted, needed + revived)
        self._check_window(sequence, wanted if max_tokens else 0)
        self._hold(found)
        hit = len(found) * self.block_size
        holding = Holding(list(token_ids[:hit]), found, wanted if max_tokens else 0, tenant, committed_blocks=len(found))
        self._admit(sequence, holding)
        if self.windows is not None:
            self.windows.enter(sequence, holding.blocks, hit, holding.promised_tokens)
        self.append(sequence, token_ids[hit:])
        self.prefix_hits.tokens_asked += len(token_ids)
        self.prefix_hits.tokens_hit += hit
        return hit

    def make_room(self, sequence: Hashable, num_tokens: int) -> bool:
        """See CachePolicy."""
        holding = self._holding(sequence)
        known = len(holding.token_ids)
        if num_tokens <= known:
            return False
        self._check_length(sequence, num_tokens)
        copies = self._writes_shared_block(holding)
        new = max(0, blocks_needed(num_tokens, self.block_size) - len(holding.blocks))
        if not copies and not new:
            return False
        owed = self._owed(holding)  # blocks promised to this sequence, which it may take
        if copies + new > owed and copies + new > owed + self.num_available:
            raise self._no_room(sequence, num_tokens, copies + new)
        if copies:
            self._copy_block(sequence, holding, known)
        holding.blocks.extend(self._take(new))
        return True

    def append(self, sequence: Hashable, token_ids: Many[int]) -> bool:
        """See CachePolicy."""
        holding = self._holding(sequence)
        start, end = len(holding.token_ids), len(holding.token_ids) + len(token_ids)
        changed = self.make_room(sequence, end)
        holding.token_ids.extend(token_ids)
        first = start // self.block_size
        self._fill(holding.blocks[first : blocks_needed(end, self.block_size)], end - first * self.block_size)
        return changed

    def room(self, sequence: Hashable) -> int:
        """See CachePolicy. A shared block may not be written."""
        holding = self._holding(sequence)
        return len(holding.token_ids) if self._writes_shared_block(holding) else len(holding.blocks) * self.block_size

    def trim(self, sequence: Hashable, num_tokens: int) -> None:
        """See CachePolicy. Whole blocks are released, the last one first."""
        holding = self._holding(sequence)
        kept = blocks_needed(max(num_tokens, len(holding.token_ids)), self.block_size)
        if self.windows is not None:
            self.windows.trim(sequence, kept)
        lost = holding.blocks[kept:]
        del holding.blocks[kept:]
        self._release(reversed(lost))

    def fork(self, parent: Hashable, child: Hashable) -> None:
        """See CachePolicy. The parent keeps its room for future tokens."""
        source = self._holding(parent)
        if child in self._held:
            raise CacheError(f"sequence {child!r} has reserved already: free it before forking {parent!r} to it")
        self._check_window(child, source.promised_tokens)
        shared = source.blocks[: blocks_needed(len(source.token_ids), self.block_size)]
        self._hold(shared)
        self._admit(child, replace(source, token_ids=list(source.token_ids), blocks=shared))
        if self.windows is not None:
            self.windows.fork(parent, child, shared)
        if self.num_available < 0:  # both have the parent's promise, and one of them will copy a shared block
            missing = -self.num_available
            self.free(child)
            raise self._no_room(child, source.promised_tokens, missing)

    def free(self, sequence: Hashable) -> None:
        """See CachePolicy. The last block is released first, so that the first blocks of a text stay cached longest."""
        blocks = self._holding(sequence).blocks
        if self.windows is not None:
            self.windows.leave(sequence)
        del self._held[sequence]
        self._promised.pop(sequence, None)
        self._release(reversed(blocks))

    def tokens(self, sequence: Hashable) -> list[int]:
        """See CachePolicy."""
        return list(self._holding(sequence).token_ids)

    def table(self, sequence: Hashable) -> list[int]:
        """See CachePolicy."""
        return list(self._holding(sequence).blocks)

    def usage(self) -> CacheUsage:
        """See CachePolicy."""
        allocated = self.pool.num_held * self.bytes_per_block
        holding = self._tokens_held * self.bytes_per_block // self.block_size
        retained, promised = self.pool.num_idle * self.bytes_per_block, self._num_owed * self.bytes_per_block
        usage = CacheUsage(self.num_blocks * self.bytes_per_block, allocated, holding, retained, promised)
        if self.windows is None:
            return usage
        total, used = (count * self.windows.bytes_per_block for count in (self.windows.room.num_blocks, self.windows.num_used))
        return replace(usage, total=usage.total + total, allocated=allocated + used, holding=holding + used)

    def take_copies(self) -> list[tuple[int, int]]:
        """See CachePolicy."""
        copies, self._copies = self._copies, []
        return copies

    def check(self) -> None:
        """See CachePolicy."""
        check_paged(self.pool, self.block_size, self._held, self._filled, self._tokens_held)
        if self.num_available < 0:
            raise CacheError(f"{-self.num_available} blocks more are promised than there are")
        if self.windows is not None:
            self.windows.check()

    @property
    def num_available(self) -> int:
        """The number of blocks that are neither held nor promised."""
        return self.pool.num_free + self.pool.num_idle - self._num_owed

    @property
    def _num_owed(self) -> int:
        return sum(map(self._owed, self._promised.values()))

    def _owed(self, holding: Holding) -> int:
        """The number of promised blocks that a sequence has not taken yet."""
        if not holding.promised_tokens:
            return 0
        missing = max(0, blocks_needed(holding.promised_tokens, self.block_size) - len(holding.blocks))
        return missing + self._writes_shared_block(holding)

    def _writes_shared_block(self, holding: Holding) -> bool:
        """Whether the next token of a sequence would be written to a shared block."""
        index = len(holding.token_ids) // self.block_size
        return index < len(holding.blocks) and self.pool.holders(holding.blocks[index]) > 1

    def _admit(self, sequence: Hashable, holding: Holding) -> None:
        self._held[sequence] = holding
        if holding.promised_tokens:
            self._promised[sequence] = holding

    def _copy_block(self, sequence: Hashable, holding: Holding, known: int) -> None:
        """Replace the block of position `known` by an own copy of the tokens before that position."""
        index, filled = divmod(known, self.block_size)
        shared, [own] = holding.blocks[index], self._take(1)
        self._fill([own], filled)
        self._copies.append((shared, own))
        if self.windows is not None:
            self.windows.copy(sequence, index, shared, own)
        holding.blocks[index] = own
        self._release([shared])

    def _fill(self, blocks: Many[int], tokens: int) -> None:
        """Count `tokens` tokens in these blocks, as many as fit in each, from the first one on."""
        for block in blocks:
            filled = min(tokens, self.block_size)
            tokens -= filled
            self._tokens_held += filled - self._filled[block]
            self._filled[block] = filled

    def _hold(self, blocks: Many[int]) -> None:
        self.pool.hold(blocks)

    def _release(self, blocks: Iterable[int]) -> None:
        idle = self.pool.release(blocks)
        self._fill(idle, 0)
        self._let_go(idle)

    def _take(self, count: int) -> list[int]:
        return self.pool.take(count)

    def _let_go(self, blocks: Many[int]) -> None:
        """Give back blocks that have lost their last holders."""
        self._give_back(blocks)

    def _give_back(self, blocks: Many[int]) -> None:
        self.pool.give_back(blocks)
        if self.windows is not None:
            for block in blocks:
                self.windows.drop(block)

    def _check_window(self, sequence: Hashable, num_tokens: int) -> None:
        if self.windows is not None and not self.windows.admits(num_tokens):
            raise OutOfMemoryError(
                f"The sliding window of {sequence!r} has no room: the {self.windows.room.num_blocks} blocks for windows are promised to "
                "other sequences: wait for one to end"
            )

    def _find_prefix(self, token_ids: Many[int], tenant: str) -> list[int]:
        """Blocks that already hold the beginning of a prompt; none without a prefix cache."""
        return []

    def _holding(self, sequence: Hashable) -> Holding:
        if sequence not in self._held:
            raise CacheError(f"sequence {sequence!r} holds nothing: it never reserved, or it was freed before")
        return self._held[sequence]

    def _check_length(self, sequence: Hashable, num_tokens: int) -> None:
        if num_tokens > self.max_sequence_tokens:
            raise OutOfMemoryError(
                f"{num_tokens} tokens of {sequence!r} can never fit: the KV cache has room for {self.max_sequence_tokens} tokens of a "
                "sequence. Lower max_tokens or shorten the prompt."
            )

    def _no_room(self, sequence: Hashable, tokens: int, needed: int) -> OutOfMemoryError:
        return OutOfMemoryError(
            f"{needed} more KV cache blocks of {self.block_size} tokens are needed for {tokens} tokens of {sequence!r}, and "
            f"{max(0, self.num_available)} of {self.num_blocks} are free and unpromised: lower max_tokens, shorten the prompt, "
            "or wait for a sequence to end"
        )
