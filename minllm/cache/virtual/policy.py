"""The virtual policy: contiguous addresses, and memory as sequences grow.

The GPU's own page tables do for all kernels what block tables of a paged cache do in each kernel (vAttention, arXiv 2405.04437). Three
techniques hide the latency of the driver's calls (section 6.1 of the paper):

    mapping ahead        when a sequence enters, pages for its prompt are mapped at once, and pages for an answer of the estimated length
                         (length_estimate.py) by a background thread; later this thread keeps LOOK_AHEAD tokens ahead of the sequence
    deferred reclamation a slot keeps its pages after its sequence has ended, for the next sequence in the slot (slots.py)
    late reclamation     only if pages run out, pages of idle slots are unmapped, then pages that were mapped too far ahead

Memory that running kernels or graphs use is never remapped: room is made before a step is launched, pages that running sequences may write
are never reclaimed, and VirtualRange.unmap waits for all launched work first. Pages that a running sequence claims are not given to others
(claims.py).

A fork copies its parent's pages: addresses are contiguous, so two sequences cannot share a page and then diverge in it.
"""

import threading
from collections.abc import Hashable
from collections.abc import Sequence as Many

from minllm.cache.policy import CachePolicy, CacheUsage, PrefixHits
from minllm.cache.virtual.cache import VirtualKVCache
from minllm.cache.virtual.check import check_virtual
from minllm.cache.virtual.claims import READ_TILE, STEP_TILE, Claims, Occupied
from minllm.cache.virtual.length_estimate import LengthEstimate
from minllm.cache.virtual.mapping_thread import MappingThread
from minllm.cache.virtual.slots import MappingCounts, Slots
from minllm.errors import CacheError, OutOfMemoryError

STEPS_AHEAD = 2  # a request for room for at most this many new tokens is a decode step
LOOK_AHEAD = 16  # pages are requested this number of tokens before a sequence reaches them


class VirtualPolicy(CachePolicy):
    """Assigns a slot of a VirtualKVCache to each sequence.

    background: whether to map ahead in a thread; False: at once, in the calling thread. read_tile, step_tile: in tokens, see claims.py; an
    engine that verifies several tokens of a sequence per step (speculative decoding) passes read_tile as step_tile too.
    look_ahead: in tokens, see above. max_retained_pairs: the most pairs of pages that idle slots keep; None: any number.
    """

    def __init__(
        self, cache: VirtualKVCache, background: bool = True, read_tile: int = READ_TILE, step_tile: int = STEP_TILE,
        look_ahead: int = LOOK_AHEAD, max_retained_pairs: int | None = None, estimate: LengthEstimate | None = None,
    ):  # fmt: skip
        self.cache, self.layout, self.slots = cache, cache.layout, Slots(cache)
        self.block_size, self.num_blocks = cache.block_size, cache.num_blocks
        self.look_ahead, self.max_retained_pairs = look_ahead, max_retained_pairs
        self.estimate = estimate or LengthEstimate()
        self.prefix_hits = PrefixHits()
        self._claims = Claims(self.slots, read_tile, step_tile)
        self._lock = threading.RLock()
        self._thread = MappingThread(self) if background else None

    @property
    def counts(self) -> MappingCounts:
        """The counts of pages that were mapped in time or late."""
        return self.slots.counts

    @property
    def max_sequence_tokens(self) -> int:
        """See CachePolicy. Limited by a slot's addresses, or by whole tiles in all pages."""
        return self._claims.longest

    def reserve(self, sequence: Hashable, token_ids: Many[int], max_tokens: int = 0, tenant: str = "") -> int:
        """See CachePolicy. Nothing is shared, so the result is always 0."""
        if not len(token_ids) or max_tokens < 0:
            raise CacheError(f"{len(token_ids)} tokens and max_tokens={max_tokens} cannot be reserved: give 1 token and 0 or more")
        with self._lock:
            self._enter(sequence, list(token_ids), len(token_ids), len(token_ids) + max_tokens if max_tokens else 0)
            self.prefix_hits.tokens_asked += len(token_ids)
        return 0

    def make_room(self, sequence: Hashable, num_tokens: int) -> bool:
        """See CachePolicy. The table has all blocks of a slot from the start, so it never changes."""
        with self._lock:
            occupied = self._occupied(sequence)
            if num_tokens <= occupied.room:
                return False
            self._check_length(sequence, num_tokens)
            takes_steps = num_tokens - len(occupied.token_ids) <= STEPS_AHEAD
            tiles_end = max(occupied.tiles_end, 0 if takes_steps else self._claims.end_of_tile(num_tokens))
            needed = self._claims.pairs_read(num_tokens, tiles_end)
            missing = needed - self._claims.of(occupied)
            if missing > 0 and missing > self._claims.available:
                raise self._no_room(sequence, num_tokens, missing)
            if needed > self.slots.mapped[occupied.slot]:  # rare: most steps need no new page
                self._back(occupied, needed)
                self.counts.waits += 1
            occupied.room, occupied.tiles_end = num_tokens, tiles_end
            self._ask(sequence, occupied)
        return False

    def append(self, sequence: Hashable, token_ids: Many[int]) -> bool:
        """See CachePolicy."""
        with self._lock:
            occupied = self._occupied(sequence)
            self.make_room(sequence, len(occupied.token_ids) + len(token_ids))
            occupied.token_ids.extend(token_ids)
        return False

    def room(self, sequence: Hashable) -> int:
        """See CachePolicy."""
        with self._lock:
            return self._occupied(sequence).room

    def trim(self, sequence: Hashable, num_tokens: int) -> None:
        """See CachePolicy. The claim shrinks; pages stay mapped until others need them."""
        with self._lock:
            occupied = self._occupied(sequence)
            occupied.room = min(occupied.room, max(num_tokens, len(occupied.token_ids)))
            occupied.tiles_end = min(occupied.tiles_end, self._claims.end_of_tile(occupied.room))

    def fork(self, parent: Hashable, child: Hashable) -> None:
        """See CachePolicy. The child gets a slot and pages of its own, and a copy of the parent's keys and values."""
        with self._lock:
            source = self._occupied(parent)
            copied = self._enter(child, list(source.token_ids), source.prompt_tokens, source.promised_tokens)
            self._claims.copies.append((source.slot, copied.slot))

    def free(self, sequence: Hashable) -> None:
        """See CachePolicy. The slot keeps its pages for the next sequence."""
        with self._lock:
            occupied = self._occupied(sequence)
            del self._claims.held[sequence]
            self.slots.idle.add(occupied.slot)
            self._claims.copies = [copy for copy in self._claims.copies if copy[1] != occupied.slot]
            answer, prompt = len(occupied.token_ids) - occupied.prompt_tokens, occupied.prompt_tokens
            self.estimate.observe(answer, occupied.expected_tokens - prompt)
            if self.max_retained_pairs is not None:
                self.slots.reclaim(self.slots.num_retained - self.max_retained_pairs, self._claims.kept)

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
            copies, self._claims.copies = self._claims.copies, []
            return [pair for source, copy in copies for pair in zip(self._blocks_of(source), self._blocks_of(copy), strict=True)]

    def usage(self) -> CacheUsage:
        """See CachePolicy. Pages that are mapped ahead count as allocated, so they are waste until they are filled."""
        with self._lock:
            pair_bytes, held = self.layout.pair_bytes, self._claims.held.values()
            allocated = pair_bytes * sum(self.slots.mapped[occupied.slot] for occupied in held)
            holding = 2 * self.layout.token_bytes * sum(len(occupied.token_ids) for occupied in held)
            retained, promised = pair_bytes * self.slots.num_retained, pair_bytes * self._claims.owed
            return CacheUsage(self.cache.num_bytes, allocated, holding, retained, promised)

    def forget_counts(self) -> None:
        """See CachePolicy."""
        with self._lock:
            super().forget_counts()
            self.estimate, self.slots.counts = LengthEstimate(), MappingCounts()

    def check(self) -> None:
        """See CachePolicy."""
        with self._lock:
            claims = self._claims
            check_virtual(self.slots, claims.held, {name: claims.pairs_read(has.room, has.tiles_end) for name, has in claims.held.items()})
            if claims.available < 0:
                raise CacheError(f"{-claims.available} pairs of pages more are promised than there are")

    def map_ahead(self, sequence: Hashable) -> None:
        """Map the pages requested for a sequence, as long as there are unclaimed pages."""
        is_going_on = True
        while is_going_on:
            with self._lock:  # one page at a time, so that a step that is about to be launched need not wait long
                occupied = self._claims.held.get(sequence)
                if occupied is None or self.slots.mapped[occupied.slot] >= occupied.asked_pairs:
                    return
                is_going_on = self.slots.num_left > self._claims.owed and self.slots.map_one(occupied.slot)

    def wait(self) -> None:
        """Wait until the thread has handled all requests; raises its error, if there was one."""
        if self._thread is not None:
            self._thread.wait()

    def close(self) -> None:
        """End the thread and free all memory."""
        if self._thread is not None:
            self._thread.close()
        self.cache.close()

    def _enter(self, sequence: Hashable, token_ids: list[int], prompt_tokens: int, promised: int) -> Occupied:
        """Give a sequence a slot with memory for its tokens."""
        if sequence in self._claims.held:
            raise CacheError(f"sequence {sequence!r} has reserved already: free it before reserving again")
        self._check_length(sequence, max(promised, len(token_ids)))
        limit = promised or self.max_sequence_tokens
        expected = max(len(token_ids), min(limit, prompt_tokens + round(self.estimate.tokens)))
        tiles_end = self._claims.end_of_tile(len(token_ids))
        occupied = Occupied(-1, token_ids, prompt_tokens, promised, expected, len(token_ids), tiles_end)
        claim, needed = self._claims.of(occupied), self._claims.pairs_read(len(token_ids), tiles_end)
        slot = self.slots.take(needed, self._claims.kept) if claim <= self._claims.available else None
        if slot is None:
            raise self._no_room(sequence, max(promised, len(token_ids)), claim)
        occupied.slot = slot
        try:
            self._back(occupied, needed)
        except BaseException:
            self.slots.idle.add(slot)
            raise
        self._claims.held[sequence] = occupied
        self._ask(sequence, occupied)
        return occupied

    def _back(self, occupied: Occupied, pairs: int) -> None:
        """Map the first `pairs` pairs of a sequence now."""
        self.slots.back(occupied.slot, pairs, self._claims.kept)

    def _ask(self, sequence: Hashable, occupied: Occupied) -> None:
        """Request pages to the sequence's expected end, or `look_ahead` tokens ahead."""
        wanted = max(occupied.expected_tokens, occupied.room + self.look_ahead)
        pairs = self._claims.pairs_read(min(wanted, occupied.promised_tokens or self.max_sequence_tokens), occupied.tiles_end)
        if pairs <= max(occupied.asked_pairs, self.slots.mapped[occupied.slot]):
            return
        occupied.asked_pairs = pairs
        if self._thread is None:
            self.map_ahead(sequence)
        else:
            self._thread.ask(sequence)

    def _blocks_of(self, slot: int) -> list[int]:
        return list(range(slot * self.layout.blocks_per_slot, (slot + 1) * self.layout.blocks_per_slot))

    def _occupied(self, sequence: Hashable) -> Occupied:
        if sequence not in self._claims.held:
            raise CacheError(f"sequence {sequence!r} holds nothing: it never reserved, or it was freed before")
        return self._claims.held[sequence]

    def _check_length(self, sequence: Hashable, num_tokens: int) -> None:
        if num_tokens > self.max_sequence_tokens:
            raise OutOfMemoryError(
                f"{num_tokens} tokens are needed for {sequence!r}, and the KV cache holds sequences of up to {self.max_sequence_tokens}: "
                "lower max_tokens or shorten the prompt"
            )

    def _no_room(self, sequence: Hashable, num_tokens: int, pairs: int) -> OutOfMemoryError:
        return OutOfMemoryError(
            f"{num_tokens} tokens of {sequence!r} need {pairs} pairs of pages of {self.layout.page_bytes / 2**20:g} MiB, and "
            f"{max(0, self._claims.available)} of {self.cache.num_pairs} are nobody's, with {len(self.slots.idle)} of "
            f"{self.layout.num_slots} slots free: lower max_tokens, shorten the prompt, or wait for a sequence to end"
        )
