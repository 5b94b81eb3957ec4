"""The virtual policy: a sequence has addresses for the longest text from the start, and memory for what it has written.

What paging does with block tables in every kernel, the GPU's own page tables do here, for all kernels at once (vAttention, arXiv
2405.04437). Three things make the driver's slow calls harmless (section 6.1 of the paper):

    mapping ahead        when a sequence enters, pages for its prompt are mapped at once, and those for an answer of the estimated length
                         (length_estimate.py) by a thread in the background; later that thread stays LOOK_AHEAD tokens in front
    deferred reclamation a slot whose sequence has ended keeps its pages: the next sequence in it finds them
    reclaiming late      only when pages run out, those of idle slots are taken, then those mapped too far ahead

Nothing is ever unmapped under a kernel or a graph that runs: the pages of a running sequence's tokens are not taken, and before any page
is taken VirtualRange waits for everything that was launched. Room is made before a step is launched, never while it runs.

Kernels fetch whole tiles of keys (READ_TILE tokens at most) of which only the visible ones count; so tiles are mapped as a whole.

A fork copies its parent's pages: addresses are contiguous, so two sequences cannot share a page and then go on apart in it.
"""

import threading
from collections.abc import Hashable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from minllm.cache.length_estimate import LengthEstimate
from minllm.cache.mapping_thread import MappingThread
from minllm.cache.policy import CachePolicy, CacheUsage, PrefixHits
from minllm.cache.virtual_cache import VirtualKVCache
from minllm.cache.virtual_check import check_virtual
from minllm.errors import CacheError, OutOfMemoryError

READ_TILE = 128  # tokens: the most keys that an attention kernel fetches at a time
LOOK_AHEAD = 16  # tokens: pages are asked for so long before a sequence reaches them


@dataclass(slots=True)
class Occupied:
    """A running sequence."""

    slot: int
    token_ids: list[int]
    prompt_tokens: int
    room: int  # tokens that it may write
    promised_tokens: int  # there is room for so many for certain; 0: nothing is promised
    expected_tokens: int  # prompt and estimated answer
    asked_pairs: int = 0  # up to here the thread was asked to map


@dataclass(slots=True)
class MappingCounts:
    """How often memory was there in time. Pairs: a page of keys and one of values."""

    mapped_in_time: int = 0  # pairs, by the thread
    mapped_late: int = 0  # pairs, while a sequence waited
    waits: int = 0  # how often one waited after its prompt: misses of the estimate and the thread
    reused: int = 0  # pairs that a sequence found in its slot
    reclaimed: int = 0  # pairs taken from idle slots or from far ahead


@dataclass
class VirtualPolicy(CachePolicy):
    """A slot for each sequence of a VirtualKVCache. background False maps ahead at once, in the calling thread, for tests.

    max_retained_pairs: how many pairs idle slots may keep in all; None: any number.
    """

    cache: VirtualKVCache
    background: bool = True
    max_retained_pairs: int | None = None
    estimate: LengthEstimate = field(default_factory=LengthEstimate)
    counts: MappingCounts = field(default_factory=MappingCounts)
    prefix_hits: PrefixHits = field(default_factory=PrefixHits)

    def __post_init__(self) -> None:
        self.layout = self.cache.layout
        self.block_size, self.num_blocks = self.layout.block_size, self.cache.num_blocks
        self.mapped = [0] * self.layout.num_slots  # pairs of each slot, from its beginning on
        self._held: dict[Hashable, Occupied] = {}
        self._idle = set(range(self.layout.num_slots))
        self._copies: list[tuple[int, int]] = []  # slots: (source, destination)
        self._lock = threading.RLock()
        self._thread = MappingThread(self) if self.background else None

    @property
    def max_sequence_tokens(self) -> int:
        """What a slot's addresses and all pages hold."""
        pages_hold = self.cache.num_pairs * self.layout.page_bytes // self.layout.token_bytes
        return min(self.layout.slot_tokens, pages_hold)

    def reserve(self, sequence: Hashable, token_ids: Many[int], max_tokens: int = 0, tenant: str = "") -> int:
        """See CachePolicy. Nothing is shared, so that no token is there already."""
        if not len(token_ids) or max_tokens < 0:
            raise CacheError(f"{len(token_ids)} tokens and max_tokens={max_tokens} cannot be reserved: give 1 token and 0 or more")
        with self._lock:
            self._enter(sequence, list(token_ids), len(token_ids), len(token_ids) + max_tokens if max_tokens else 0)
            self.prefix_hits.tokens_asked += len(token_ids)
        return 0

    def make_room(self, sequence: Hashable, num_tokens: int) -> bool:
        """See CachePolicy. A slot's blocks are all in the table from the start, so it never changes."""
        with self._lock:
            occupied = self._occupied(sequence)
            if num_tokens <= occupied.room:
                return False
            self._check_length(sequence, num_tokens)
            missing = self._claim(occupied, num_tokens) - self._claim(occupied)
            if missing > self.num_available:
                raise self._no_room(sequence, num_tokens, missing)
            late = self._back(occupied.slot, self._pairs_read(num_tokens))
            self.counts.waits += late > 0
            occupied.room = num_tokens
            self._ask(sequence, occupied)
        return False

    def append(self, sequence: Hashable, token_ids: Many[int]) -> bool:
        """See CachePolicy."""
        with self._lock:
            occupied = self._occupied(sequence)
            self.make_room(sequence, len(occupied.token_ids) + len(token_ids))
            occupied.token_ids.extend(token_ids)
        return False

    def fork(self, parent: Hashable, child: Hashable) -> None:
        """See CachePolicy. The child gets a slot and pages of its own, and a copy of the parent's keys and values."""
        with self._lock:
            source = self._occupied(parent)
            copied = self._enter(child, list(source.token_ids), source.prompt_tokens, source.promised_tokens, avoid=source.slot)
            self._copies.append((source.slot, copied.slot))

    def free(self, sequence: Hashable) -> None:
        """See CachePolicy. The slot keeps its pages for the next sequence."""
        with self._lock:
            occupied = self._occupied(sequence)
            del self._held[sequence]
            self._idle.add(occupied.slot)
            self._copies = [copy for copy in self._copies if copy[1] != occupied.slot]
            answer = len(occupied.token_ids) - occupied.prompt_tokens
            self.estimate.observe(answer, occupied.expected_tokens - occupied.prompt_tokens)
            if self.max_retained_pairs is not None:
                self._reclaim(sum(self.mapped[slot] for slot in self._idle) - self.max_retained_pairs, from_idle_only=True)

    def tokens(self, sequence: Hashable) -> list[int]:
        """See CachePolicy."""
        with self._lock:
            return list(self._occupied(sequence).token_ids)

    def table(self, sequence: Hashable) -> list[int]:
        """See CachePolicy: the blocks of the sequence's slot."""
        with self._lock:
            return self._blocks_of(self._occupied(sequence).slot)

    def take_copies(self) -> list[tuple[int, int]]:
        """See CachePolicy."""
        with self._lock:
            copies, self._copies = self._copies, []
            return [pair for source, copy in copies for pair in zip(self._blocks_of(source), self._blocks_of(copy), strict=True)]

    def usage(self) -> CacheUsage:
        """See CachePolicy. Pages that are mapped ahead count as allocated: they are waste until they are filled."""
        with self._lock:
            pair_bytes, held = self.layout.pair_bytes, self._held.values()
            allocated = sum(self.mapped[occupied.slot] for occupied in held)
            tokens = sum(len(occupied.token_ids) for occupied in held)
            retained = sum(self.mapped[slot] for slot in self._idle)
            owed = sum(max(0, self._claim(occupied) - self.mapped[occupied.slot]) for occupied in held)
            sizes = (pairs * pair_bytes for pairs in (retained, owed))
            return CacheUsage(self.cache.num_bytes, allocated * pair_bytes, 2 * tokens * self.layout.token_bytes, *sizes)

    def check(self) -> None:
        """See CachePolicy."""
        with self._lock:
            check_virtual(self.cache, self.mapped, self._held, self._idle)
            if self.num_available < 0:
                raise CacheError(f"{-self.num_available} pairs of pages more are promised than there are")

    def map_ahead(self, sequence: Hashable) -> None:
        """Maps what was asked for a sequence, as far as there are pages that nobody needs. Called by the thread."""
        while True:
            with self._lock:  # for a page at a time: a step that is about to be launched goes first
                occupied = self._held.get(sequence)
                if occupied is None or self.mapped[occupied.slot] >= occupied.asked_pairs or not self._num_spare:
                    return
                try:
                    self.cache.map(occupied.slot, self.mapped[occupied.slot], 1)
                except OutOfMemoryError:
                    return  # it was a service, not a promise
                self.mapped[occupied.slot] += 1
                self.counts.mapped_in_time += 1

    def wait(self) -> None:
        """Returns when the thread has mapped what it was asked for; raises what stopped it."""
        if self._thread is not None:
            self._thread.wait()

    @property
    def num_available(self) -> int:
        """Pairs of pages that no running sequence has a claim on."""
        return self.cache.num_pairs - sum(map(self._claim, self._held.values()))

    @property
    def _num_left(self) -> int:
        """Pairs that are mapped nowhere."""
        return self.cache.pages.left // 2

    @property
    def _num_spare(self) -> int:
        """Pairs that are mapped nowhere, and that no promise needs."""
        return self._num_left - sum(max(0, self._claim(occupied) - self.mapped[occupied.slot]) for occupied in self._held.values())

    def _pairs_read(self, tokens: int) -> int:
        """Pairs of the tiles that kernels fetch to see so many tokens."""
        return self.layout.pairs_for(-(-tokens // READ_TILE) * READ_TILE)

    def _claim(self, occupied: Occupied, num_tokens: int = 0) -> int:
        """Pairs that a sequence must have, now or later: for what it may write, and for what it was promised."""
        return self._pairs_read(max(occupied.room, occupied.promised_tokens, num_tokens))

    def _enter(self, sequence: Hashable, token_ids: list[int], prompt_tokens: int, promised: int, avoid: int | None = None) -> Occupied:
        """Give a sequence a slot with memory for its tokens."""
        if sequence in self._held:
            raise CacheError(f"sequence {sequence!r} has reserved already: free it before reserving again")
        expected = min(self.max_sequence_tokens, prompt_tokens + round(self.estimate.tokens))
        expected = max(len(token_ids), min(expected, promised or expected))
        self._check_length(sequence, max(promised, len(token_ids)))
        occupied = Occupied(-1, token_ids, prompt_tokens, len(token_ids), promised, expected)
        claim, needed = self._claim(occupied), self._pairs_read(len(token_ids))
        free_slots = self._idle - {source for source, _ in self._copies}
        if claim > self.num_available or not free_slots:
            raise self._no_room(sequence, max(promised, len(token_ids)), claim)
        # The slot that has enough and least to spare, else the one that has most.
        slot = min(free_slots, key=lambda slot: (self.mapped[slot] < needed, abs(self.mapped[slot] - needed), slot))
        occupied.slot = slot
        self._idle.remove(slot)
        self._held[sequence] = occupied
        self.counts.reused += min(needed, self.mapped[slot])
        try:
            self._back(slot, needed)
        except OutOfMemoryError:
            del self._held[sequence]
            self._idle.add(slot)
            raise
        self._ask(sequence, occupied)
        return occupied

    def _back(self, slot: int, pairs: int) -> int:
        """Memory behind the first `pairs` pairs of a slot, now; how many were missing."""
        missing = pairs - self.mapped[slot]
        if missing <= 0:
            return 0
        self._reclaim(missing - self._num_left)
        self.cache.map(slot, self.mapped[slot], missing)
        self.mapped[slot] = pairs
        self.counts.mapped_late += missing
        return missing

    def _ask(self, sequence: Hashable, occupied: Occupied) -> None:
        """Have the thread map to the expected end, or on from there when that comes near."""
        wanted = max(occupied.expected_tokens, occupied.room + LOOK_AHEAD)
        wanted = min(wanted, self.max_sequence_tokens, occupied.promised_tokens or wanted)
        pairs = self._pairs_read(wanted)
        if pairs <= max(occupied.asked_pairs, self.mapped[occupied.slot]):
            return
        occupied.asked_pairs = pairs
        if self._thread is None:
            self.map_ahead(sequence)
        else:
            self._thread.ask(sequence)

    def _reclaim(self, pairs: int, from_idle_only: bool = False) -> None:
        """Unmap so many pairs: the last ones of idle slots, those with most first, then what running sequences have beyond their claims."""
        pinned = {slot for copy in self._copies for slot in copy}
        sources = [(slot, 0) for slot in sorted(self._idle - pinned, key=lambda slot: -self.mapped[slot])]
        if not from_idle_only:
            sources += [(occupied.slot, self._claim(occupied)) for occupied in self._held.values()]
        for slot, kept in sources:
            taken = min(pairs, self.mapped[slot] - kept)
            if taken > 0:
                self.cache.unmap(slot, self.mapped[slot] - taken, taken)
                self.mapped[slot] -= taken
                self.counts.reclaimed += taken
                pairs -= taken

    def _blocks_of(self, slot: int) -> list[int]:
        return list(range(slot * self.layout.blocks_a_slot, (slot + 1) * self.layout.blocks_a_slot))

    def _occupied(self, sequence: Hashable) -> Occupied:
        if sequence not in self._held:
            raise CacheError(f"sequence {sequence!r} is not in the cache: it never reserved, or it was freed before")
        return self._held[sequence]

    def _check_length(self, sequence: Hashable, num_tokens: int) -> None:
        if num_tokens > self.max_sequence_tokens:
            raise OutOfMemoryError(
                f"{num_tokens} tokens are needed for {sequence!r}, and the KV cache holds sequences of up to {self.max_sequence_tokens}: "
                "lower max_tokens, shorten the prompt, or give the cache more memory (gpu_memory_utilization)"
            )

    def _no_room(self, sequence: Hashable, num_tokens: int, pairs: int) -> OutOfMemoryError:
        return OutOfMemoryError(
            f"{num_tokens} tokens of {sequence!r} need {pairs} pairs of pages of {self.layout.page_bytes / 2**20:g} MiB, and "
            f"{max(0, self.num_available)} of {self.cache.num_pairs} are nobody's, in {len(self._idle)} free slots of "
            f"{self.layout.num_slots}: free sequences, lower max_tokens, or give the cache more memory (gpu_memory_utilization)"
        )
