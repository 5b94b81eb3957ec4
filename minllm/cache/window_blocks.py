"""Local blocks: the memory of layers with a sliding window, which keep only what a query may still see.

In Gemma 3 five layers of six see only the newest W tokens. A block of the cache has a part in every layer. Its part in layers that see the
whole context lives as long as the block; its part in the layers with a window, its local block, only as long as a query may see it: one at
position p sees the positions above p - W. So a sequence of any length has local blocks for a window and for the tokens of its next step:

    slide(sequence, start, end)   a step computes positions start to end: local blocks before its window are freed, new ones are taken
    local_of                      [num_blocks] the local block of each block; 0 means none, and local block 0 is never written

A local block cannot be refused in the middle of a step, so a sequence is admitted only if its window has room beside those of the others.

With prefix caching a block may lose its local block and stay: a text can be continued only after blocks behind which a whole window is left
(`usable`). Freed local blocks are then kept until others need the memory, and the one freed longest ago goes first.

Source: vLLM's hybrid KV cache manager, which frees the same blocks with one block table for each kind of layer.
"""

import heapq
from collections import OrderedDict
from collections.abc import Hashable
from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np

from minllm.cache.block_pool import blocks_needed
from minllm.cache.paged_check import require
from minllm.errors import OutOfMemoryError

NONE = 0  # the local block of blocks without one


@dataclass(frozen=True)
class WindowRoom:
    """Local blocks of `block_size` tokens for windows of `window` tokens, num_blocks in all, NONE included.

    step_tokens: the most tokens of one step.
    """

    window: int
    block_size: int
    step_tokens: int
    num_blocks: int = 0

    @property
    def blocks_of_a_step(self) -> int:
        """NONE, and what the new tokens of a step take beyond the windows of its sequences."""
        return 2 + self.step_tokens // self.block_size

    def blocks_of(self, num_tokens: int) -> int:
        """The most local blocks of a sequence of up to `num_tokens` tokens between steps; 0 for any number."""
        window = blocks_needed(self.window, self.block_size) + 2
        return min(window, blocks_needed(num_tokens, self.block_size) + 1) if num_tokens else window


@dataclass(slots=True)
class LocalRange:
    """The places in a sequence's block table whose local blocks it uses: first to end."""

    blocks: list[int]  # the table itself, which grows
    first: int
    end: int
    promised: int  # the most local blocks that it has between steps
    computed: int  # tokens that planned steps have computed


class WindowBlocks:
    """Assigns local blocks to the blocks of a policy. keeps: whether freed ones stay for the prefix cache while nobody needs them."""

    def __init__(self, num_blocks: int, room: WindowRoom, keeps: bool = False, bytes_per_block: int = 0):
        self.room, self.keeps, self.bytes_per_block = room, keeps, bytes_per_block
        self.local_of = np.full(num_blocks, NONE, np.int32)
        self.num_freed = 0  # local blocks freed because they left the windows of all their sequences
        self._promised = 0
        self._ranges: dict[Hashable, LocalRange] = {}
        self._users = [0] * num_blocks
        self._free = list(range(1, room.num_blocks))
        self._kept: OrderedDict[int, None] = OrderedDict()  # blocks without users that still have a local block
        self._moved: list[Hashable] = []  # sequences of the last planned step
        self._changed: set[int] = set()  # blocks with another local block than the device knows
        self._copies: list[tuple[int, int]] = []
        if not self._fits(room.blocks_of(0)):
            raise OutOfMemoryError(
                f"{room.num_blocks} blocks for sliding windows have no room for a window of {room.window} tokens: free some memory"
            )

    @property
    def num_used(self) -> int:
        """The number of local blocks that sequences use."""
        return self.room.num_blocks - 1 - len(self._free) - len(self._kept)

    def admits(self, num_tokens: int) -> bool:
        """Whether another sequence of up to this many tokens has room; 0 for any number."""
        return self._fits(self.room.blocks_of(num_tokens))

    def usable(self, blocks: Many[int]) -> int:
        """The number of leading blocks, which hold the beginning of a text, after which the text can be continued."""
        present = [self.local_of[block] != NONE for block in blocks]
        counts = range(len(blocks), 0, -1)
        return next((n for n in counts if all(present[self._first_seen(n * self.room.block_size) : n])), 0)

    def enter(self, sequence: Hashable, blocks: list[int], num_computed: int, num_tokens: int) -> None:
        """Admit a sequence of up to `num_tokens` tokens (0 for any number), of which `num_computed` are in its blocks, which are whole."""
        first, end = self._first_seen(num_computed), num_computed // self.room.block_size
        self._add(sequence, LocalRange(blocks, first, end, self.room.blocks_of(num_tokens), num_computed))

    def fork(self, parent: Hashable, child: Hashable, blocks: list[int]) -> None:
        """Admit `child`, whose blocks are the parent's."""
        of = self._ranges[parent]
        self._add(child, LocalRange(blocks, of.first, min(of.end, len(blocks)), of.promised, of.computed))
        self._moved.append(child)

    def begin_step(self) -> None:
        """Free what the next tokens of the last step's sequences do not see."""
        for of in filter(None, map(self._ranges.get, self._moved)):
            self._free_before(of, self._first_seen(of.computed))
        self._moved.clear()

    def slide(self, sequence: Hashable, start: int, end: int) -> None:
        """Take local blocks for a step that computes positions `start` to `end` of a sequence."""
        of = self._ranges[sequence]
        self._free_before(of, self._first_seen(start))
        for place in range(of.end, blocks_needed(end, self.room.block_size)):
            self._use(of.blocks[place])
            of.end = place + 1
        of.computed = end
        self._moved.append(sequence)

    def copy(self, sequence: Hashable, place: int, shared: int, own: int) -> None:
        """Give `own`, which replaces a shared block of a sequence, a copy of its local block."""
        of = self._ranges[sequence]
        if of.first <= place < of.end:
            self._use(own)
            self._copies.append((int(self.local_of[shared]), int(self.local_of[own])))
            self._leave(shared)

    def trim(self, sequence: Hashable, num_blocks: int) -> None:
        """Free the local blocks of the blocks that a sequence is about to lose, all but the first `num_blocks`."""
        of = self._ranges[sequence]
        while of.end > max(num_blocks, of.first):
            of.end -= 1
            self._leave(of.blocks[of.end])

    def leave(self, sequence: Hashable) -> None:
        """Free the local blocks of a sequence that ends."""
        of = self._ranges.pop(sequence)
        self._promised -= of.promised
        for block in of.blocks[of.first : of.end]:
            self._leave(block)

    def drop(self, block: int) -> None:
        """Free the local block of a block that becomes free."""
        if block in self._kept:
            del self._kept[block]
            self._give_back(block)

    def take_copies(self) -> list[tuple[int, int]]:
        """(source, destination) of local blocks to copy, as CachePolicy.take_copies."""
        copies, self._copies = self._copies, []
        return copies

    def changes(self) -> np.ndarray:
        """(block, local block) of blocks whose local block the device does not know, int32 [n, 2], until `forget_changes`."""
        blocks = np.fromiter(self._changed, np.int32, len(self._changed))
        return np.stack([blocks, self.local_of[blocks]], axis=1)

    def forget_changes(self) -> None:
        """The device knows all local blocks."""
        self._changed.clear()

    def check(self) -> None:
        """Raise CacheError unless the counts agree with the sequences, and every local block has one block."""
        users = [0] * len(self._users)
        for of in self._ranges.values():
            for block in of.blocks[of.first : of.end]:
                users[block] += 1
        require(users == self._users, f"local blocks are counted with the users {self._users} and have {users}")
        taken = self.local_of[self.local_of != NONE].tolist()
        require(sorted([*taken, *self._free]) == list(range(1, self.room.num_blocks)), "local blocks are lost or taken twice")
        has = {block for block, local in enumerate(self.local_of) if local != NONE}
        require(has == {block for block, count in enumerate(users) if count} | set(self._kept), "the wrong blocks have local blocks")
        require(self._promised == sum(of.promised for of in self._ranges.values()), "local blocks are promised that nobody has")

    def _fits(self, more: int) -> bool:
        return self._promised + more + self.room.blocks_of_a_step <= self.room.num_blocks

    def _first_seen(self, position: int) -> int:
        """The place of the first block that a query at this position sees."""
        return max(0, position - self.room.window + 1) // self.room.block_size

    def _add(self, sequence: Hashable, of: LocalRange) -> None:
        self._ranges[sequence] = of
        self._promised += of.promised
        for block in of.blocks[of.first : of.end]:
            self._use(block)

    def _free_before(self, of: LocalRange, place: int) -> None:
        while of.first < min(place, of.end):
            self.num_freed += self._users[of.blocks[of.first]] == 1
            self._leave(of.blocks[of.first])
            of.first += 1

    def _use(self, block: int) -> None:
        self._kept.pop(block, None)
        self._users[block] += 1
        if self.local_of[block] == NONE:
            if not self._free:  # there is a kept one, because sequences use no more than they were promised
                self._give_back(self._kept.popitem(last=False)[0])
            self._set(block, heapq.heappop(self._free))

    def _leave(self, block: int) -> None:
        self._users[block] -= 1
        if not self._users[block]:
            if self.keeps:
                self._kept[block] = None
            else:
                self._give_back(block)

    def _give_back(self, block: int) -> None:
        heapq.heappush(self._free, int(self.local_of[block]))
        self._set(block, NONE)

    def _set(self, block: int, local: int) -> None:
        self.local_of[block] = local
        self._changed.add(block)
