"""Which pages of a virtual cache running sequences have a claim on, behind them already or not: nobody else may have those.

A claim is for what a sequence may write now and what it was promised, and for what kernels read along. They fetch whole tiles of keys, of
which only the visible ones count; so tiles are mapped as a whole: of up to READ_TILE tokens where several are computed at a time, a prompt,
and of STEP_TILE in a step of one new token. Pages are counted in pairs, one of keys and one of values.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from minllm.cache.virtual.slots import Slots

READ_TILE = 128  # tokens: the most keys that an attention kernel of a prompt fetches at a time
STEP_TILE = 16  # tokens: the same for a kernel of one new token a sequence


@dataclass(slots=True)
class Occupied:
    """A running sequence."""

    slot: int
    token_ids: list[int]
    prompt_tokens: int
    promised_tokens: int  # there is room for so many for certain; 0: nothing is promised
    expected_tokens: int  # prompt and estimated answer
    room: int  # tokens that it may write now
    tiles_end: int  # tokens: where the last tile ends that a prompt's kernels fetch
    asked_pairs: int = 0  # up to here it is to be mapped in the background


class Claims:
    """The running sequences and what each must have.

    held: sequence -> what it has. copies: slots, (source, destination), that are still to be copied.
    Not safe for several threads: VirtualPolicy locks.
    """

    def __init__(self, slots: Slots, read_tile: int, step_tile: int):
        self.slots, self.layout, self.num_pairs = slots, slots.cache.layout, slots.cache.num_pairs
        self.read_tile, self.step_tile = read_tile, step_tile
        self.held: dict[Hashable, Occupied] = {}
        self.copies: list[tuple[int, int]] = []

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence: what a slot's addresses hold, or as many whole tiles as all pages do."""
        pages_hold = self.num_pairs * self.layout.page_bytes // self.layout.token_bytes
        return min(self.layout.slot_tokens, pages_hold // self.read_tile * self.read_tile)

    @property
    def available(self) -> int:
        """Pairs that no running sequence has a claim on."""
        return self.num_pairs - sum(self.kept.values())

    @property
    def owed(self) -> int:
        """Pairs that running sequences have a claim on and not behind them yet."""
        return sum(max(0, self.of(occupied) - self.slots.mapped[occupied.slot]) for occupied in self.held.values())

    @property
    def kept(self) -> dict[int, int]:
        """slot -> pairs that nobody else may have: those of running sequences, and of one that has ended and is still to be copied."""
        kept = {occupied.slot: self.of(occupied) for occupied in self.held.values()}
        for source, copy in self.copies:
            if source not in kept:
                kept[source] = min(self.slots.mapped[source], self.slots.mapped[copy])
        return kept

    def of(self, occupied: Occupied) -> int:
        """Pairs that a sequence must have, now or later: for what it may write, and for what it was promised."""
        return self.pairs_read(max(occupied.room, occupied.promised_tokens), occupied.tiles_end)

    def end_of_tile(self, tokens: int) -> int:
        """Where the last tile ends that a prompt's kernels fetch to see so many tokens."""
        return -(-tokens // self.read_tile) * self.read_tile

    def pairs_read(self, tokens: int, tiles_end: int) -> int:
        """Pairs of what kernels fetch: steps to see so many tokens, and prompts up to the end of their last tile."""
        return self.layout.pairs_for(max(tiles_end, -(-tokens // self.step_tile) * self.step_tile))
