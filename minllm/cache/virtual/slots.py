"""The slots of a virtual cache, and the pages of each.

Pages are counted in pairs, one of keys and one of values. A slot keeps its pages after its sequence has ended, until they are needed
elsewhere (deferred reclamation).
"""

from dataclasses import dataclass

from minllm.cache.virtual.cache import VirtualKVCache
from minllm.errors import OutOfMemoryError


@dataclass(slots=True)
class MappingCounts:
    """Counts of mapped pages, in pairs, except for `waits`."""

    mapped_in_time: int = 0  # mapped in the background, before a sequence needed them
    mapped_late: int = 0  # mapped while a sequence waited, for its prompt or during its answer
    waits: int = 0  # number of waits during an answer
    reused: int = 0  # already mapped in the slot that a sequence got
    reclaimed: int = 0  # unmapped from idle slots, or because they were mapped too far ahead


class Slots:
    """Slots and their pages. Not thread-safe: VirtualPolicy has the lock."""

    def __init__(self, cache: VirtualKVCache):
        self.cache = cache
        self.mapped = [0] * cache.layout.num_slots  # pairs per slot
        self.idle = set(range(cache.layout.num_slots))
        self.counts = MappingCounts()

    @property
    def num_left(self) -> int:
        """The number of pairs that are not mapped."""
        return self.cache.pages.left // 2

    @property
    def num_retained(self) -> int:
        """The number of pairs that idle slots keep."""
        return sum(self.mapped[slot] for slot in self.idle)

    def take(self, pairs: int, kept: dict[int, int]) -> int | None:
        """An idle slot that is not in `kept`: the best fit among those with at least `pairs` pairs, else the one with the most."""
        free = self.idle.difference(kept)
        slot = min(free, key=lambda slot: (self.mapped[slot] < pairs, abs(self.mapped[slot] - pairs), slot), default=None)
        if slot is not None:
            self.idle.remove(slot)
            self.counts.reused += min(pairs, self.mapped[slot])
        return slot

    def back(self, slot: int, pairs: int, kept: dict[int, int]) -> None:
        """Map the first `pairs` pairs of a slot now. Raises OutOfMemoryError if there is no memory.

        kept: {slot: pairs that it must keep}; missing pages are taken from idle slots first, then from others beyond what they keep.
        """
        missing = pairs - self.mapped[slot]
        if missing <= 0:
            return
        kept = kept | {slot: self.mapped[slot]}
        self.reclaim(missing - self.num_left, kept)
        try:
            self.cache.map(slot, self.mapped[slot], missing)
        except OutOfMemoryError:  # other processes have the machine's memory: only retained pages are left
            self.reclaim(missing, kept)
            self.cache.map(slot, self.mapped[slot], missing)
        self.mapped[slot] = pairs
        self.counts.mapped_late += missing

    def map_one(self, slot: int) -> bool:
        """Map a slot's next pair in the background; returns whether there was memory."""
        try:
            self.cache.map(slot, self.mapped[slot], 1)
        except OutOfMemoryError:
            return False  # mapping ahead is not guaranteed
        self.mapped[slot] += 1
        self.counts.mapped_in_time += 1
        return True

    def reclaim(self, pairs: int, kept: dict[int, int]) -> None:
        """Unmap up to `pairs` pairs from the ends of slots, idle ones with most pages first, except those in `kept`."""
        idle = sorted(self.idle.difference(kept), key=lambda slot: -self.mapped[slot])
        for slot in [*idle, *kept]:
            taken = min(pairs, self.mapped[slot] - kept.get(slot, 0))
            if taken > 0:
                self.cache.unmap(slot, self.mapped[slot] - taken, taken)
                self.mapped[slot] -= taken
                self.counts.reclaimed += taken
                pairs -= taken
