"""The slots of a virtual cache: which are idle, and how many pages of memory each has, from its beginning on.

Pages are counted in pairs, one of keys and one of values. A slot whose sequence has ended keeps its pages (deferred reclamation), until
somebody else needs them.
"""

from dataclasses import dataclass

from minllm.cache.virtual.cache import VirtualKVCache
from minllm.errors import OutOfMemoryError


@dataclass(slots=True)
class MappingCounts:
    """How often memory was there in time, in pairs of pages but for `waits`."""

    mapped_in_time: int = 0  # in the background, before a sequence came there
    mapped_late: int = 0  # while a sequence waited: for its prompt, or in the middle of its answer
    waits: int = 0  # how often a sequence waited in the middle of its answer
    reused: int = 0  # that a sequence found in its slot
    reclaimed: int = 0  # taken away from idle slots, or from where they were mapped too far ahead


class Slots:
    """Slots and their pages. Not safe for several threads: VirtualPolicy locks."""

    def __init__(self, cache: VirtualKVCache):
        self.cache = cache
        self.mapped = [0] * cache.layout.num_slots  # pairs of each slot
        self.idle = set(range(cache.layout.num_slots))
        self.counts = MappingCounts()

    @property
    def num_left(self) -> int:
        """Pairs that are mapped nowhere."""
        return self.cache.pages.left // 2

    @property
    def num_retained(self) -> int:
        """Pairs that idle slots keep."""
        return sum(self.mapped[slot] for slot in self.idle)

    def take(self, pairs: int, kept: dict[int, int]) -> int | None:
        """An idle slot that is not kept: the one that has at least so many pairs and least to spare, else the one that has most."""
        free = self.idle.difference(kept)
        slot = min(free, key=lambda slot: (self.mapped[slot] < pairs, abs(self.mapped[slot] - pairs), slot), default=None)
        if slot is not None:
            self.idle.remove(slot)
            self.counts.reused += min(pairs, self.mapped[slot])
        return slot

    def back(self, slot: int, pairs: int, kept: dict[int, int]) -> None:
        """Put memory behind the first `pairs` pairs of a slot, now. OutOfMemoryError where there is none.

        kept: what other slots must keep; what idle slots have is taken first, then what others have beyond that.
        """
        missing = pairs - self.mapped[slot]
        if missing <= 0:
            return
        kept = kept | {slot: self.mapped[slot]}
        self.reclaim(missing - self.num_left, kept)
        try:
            self.cache.map(slot, self.mapped[slot], missing)
        except OutOfMemoryError:  # somebody else has the machine's memory: what is retained is all there is
            self.reclaim(missing, kept)
            self.cache.map(slot, self.mapped[slot], missing)
        self.mapped[slot] = pairs
        self.counts.mapped_late += missing

    def map_one(self, slot: int) -> bool:
        """Map a slot's next pair in the background; whether there was memory."""
        try:
            self.cache.map(slot, self.mapped[slot], 1)
        except OutOfMemoryError:
            return False  # it was a service, not a promise
        self.mapped[slot] += 1
        self.counts.mapped_in_time += 1
        return True

    def reclaim(self, pairs: int, kept: dict[int, int]) -> None:
        """Unmap up to so many pairs, from the ends of idle slots, those with most first, then of others, but not what is kept."""
        idle = sorted(self.idle.difference(kept), key=lambda slot: -self.mapped[slot])
        for slot in [*idle, *kept]:
            taken = min(pairs, self.mapped[slot] - kept.get(slot, 0))
            if taken > 0:
                self.cache.unmap(slot, self.mapped[slot] - taken, taken)
                self.mapped[slot] -= taken
                self.counts.reclaimed += taken
                pairs -= taken
