"""The virtual policy: a sequence has addresses for the longest text from the start, and memory for what it has written.

What paging does with block tables in every kernel, the GPU's own page tables do here, for all kernels at once (vAttention, arXiv
2405.04437). Three things make the driver's slow calls harmless (section 6.1 of the paper):

    mapping ahead        when a sequence enters, pages for its prompt are mapped at once, and those for an answer of the estimated length
                         (length_estimate.py) by a thread in the background; later that thread stays LOOK_AHEAD tokens in front
    deferred reclamation a slot whose sequence has ended keeps its pages: the next sequence in it finds them (slots.py)
    reclaiming late      only when pages run out, those of idle slots are taken, then those mapped too far ahead

No mapping changes under a kernel or a graph that runs: room is made before a step is launched, what running sequences may write is
never taken, and before any page is taken VirtualRange.unmap waits for everything that was launched.

Nobody else gets a page that a running sequence has a claim on (claims.py).

A fork copies its parent's pages: addresses are contiguous, so two sequences cannot share a page and then go on apart in it.
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

STEPS_AHEAD = 2  # tokens that are not known yet of a sequence for which room is made step by step
LOOK_AHEAD = 16  # tokens: pages are asked for so long before a sequence reaches them


class VirtualPolicy(CachePolicy):
    """A slot of a VirtualKVCache for each sequence.

    background: map ahead in a thread; False does it at once in the calling one. read_tile, step_tile: in tokens, see claims.py; an
    engine that computes several tokens of a sequence in a step, to verify them, gives as step_tile what it gives as read_tile.
    look_ahead: in tokens, see above.
    max_retained_pairs: how many pairs of pages idle slots may keep in all; None is any number.
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
        """How often memory was there in time."""
        return self.slots.counts

    @property
    def max_sequence_tokens(self) -> int:
        """What a slot's addresses hold, or as many whole tiles as all pages do."""
        return self._claims.longest

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
            takes_steps = num_tokens - len(occupied.token_ids) <= STEPS_AHEAD
            tiles_end = max(occupied.tiles_end, 0 if takes_steps else self._claims.end_of_tile(num_tokens))
            needed = self._claims.pairs_read(num_tokens, tiles_end)
            missing = needed - self._claims.of(occupied)
            if missing > 0 and missing > self._claims.available:
                raise self._no_room(sequence, num_tokens, missing)
            if needed > self.slots.mapped[occupied.slot]:  # seldom: most steps end here, with nothing but numbers compared
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
        """See CachePolicy. Pages that are mapped ahead count as allocated: they are waste until they are filled."""
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
        """Maps what was asked for a sequence, as far as there are pages that nobody needs. The thread's work."""
        is_going_on = True
        while is_going_on:
            with self._lock:  # for a page at a time: a step that is about to be launched goes first
                occupied = self._claims.held.get(sequence)
                is_wanted = occupied is not None and self.slots.mapped[occupied.slot] < occupied.asked_pairs
                is_going_on = is_wanted and self.slots.num_left > self._claims.owed and self.slots.map_one(occupied.slot)

    def wait(self) -> None:
        """Returns when the thread has mapped what it was asked for; raises what stopped it."""
        if self._thread is not None:
            self._thread.wait()

    def close(self) -> None:
        """Ends the thread and gives all memory back."""
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
        """Memory behind the first pairs of a sequence, now."""
        self.slots.back(occupied.slot, pairs, self._claims.kept)

    def _ask(self, sequence: Hashable, occupied: Occupied) -> None:
        """Have the thread map to the expected end, or on from there when that comes near."""
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
        return list(range(slot * self.layout.blocks_a_slot, (slot + 1) * self.layout.blocks_a_slot))

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
