"""Claims: pages of a virtual cache reserved for running sequences.

A sequence's claim covers the tokens that it may write now, its promised tokens, and the tiles that kernels read for it. Kernels load whole
tiles of keys and mask those beyond the context, so whole tiles must be mapped: of up to READ_TILE tokens in prefill, of STEP_TILE in
decode. Pages are counted in pairs, one of keys and one of values.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from minllm.cache.virtual.slots import Slots

READ_TILE = 128  # tokens; the largest tile of keys of a prefill attention kernel
STEP_TILE = 16  # tokens; the same for decode (one new token per sequence)


@dataclass(slots=True)
class Occupied:
    """The state of a running sequence."""

    slot: int
    token_ids: list[int]
    prompt_tokens: int
    promised_tokens: int  # tokens guaranteed to fit; 0 means no guarantee
    expected_tokens: int  # prompt and estimated answer
    room: int  # tokens that may be written now
    tiles_end: int  # tokens up to the end of the last tile that prefill kernels load
    asked_pairs: int = 0  # number of pairs to map in the background


class Claims:
    """The running sequences and their claims.

    held: sequence -> Occupied. copies: pairs of slots (source, destination) that are still to be copied.
    Not thread-safe: VirtualPolicy has the lock.
    """

    def __init__(self, slots: Slots, read_tile: int, step_tile: int):
        self.slots, self.layout, self.num_pairs = slots, slots.cache.layout, slots.cache.num_pairs
        self.read_tile, self.step_tile = read_tile, step_tile
        self.held: dict[Hashable, Occupied] = {}
        self.copies: list[tuple[int, int]] = []

    @property
    def longest(self) -> int:
        """The length of the longest possible sequence in tokens, limited by a slot's addresses or by whole tiles in all pages."""
        pages_hold = self.num_pairs * self.layout.page_bytes // self.layout.token_bytes
        return min(self.layout.slot_tokens, pages_hold // self.read_tile * self.read_tile)

    @property
    def available(self) -> int:
        """The number of pairs without a claim."""
        return self.num_pairs - sum(self.kept.values())

    @property
    def owed(self) -> int:
        """The number of claimed pairs that are not mapped yet."""
        return sum(max(0, self.of(occupied) - self.slots.mapped[occupied.slot]) for occupied in self.held.values())

    @property
    def kept(self) -> dict[int, int]:
        """{slot: pairs that must stay mapped}, for running sequences, and for a finished one that is still to be copied."""
        kept = {occupied.slot: self.of(occupied) for occupied in self.held.values()}
        for source, copy in self.copies:
            if source not in kept:
                kept[source] = min(self.slots.mapped[source], self.slots.mapped[copy])
        return kept

    def of(self, occupied: Occupied) -> int:
        """The claim of a sequence in pairs: for the tokens that it may write now, and for its promised tokens."""
        return self.pairs_read(max(occupied.room, occupied.promised_tokens), occupied.tiles_end)

    def end_of_tile(self, tokens: int) -> int:
        """Tokens up to the end of the last tile that prefill kernels load to read `tokens` tokens."""
        return -(-tokens // self.read_tile) * self.read_tile

    def pairs_read(self, tokens: int, tiles_end: int) -> int:
        """The number of pairs that kernels read: in decode for `tokens` tokens, in prefill up to `tiles_end`."""
        return self.layout.pairs_for(max(tiles_end, -(-tokens // self.step_tile) * self.step_tile))
