"""The memory of keys and values, in blocks of `block_size` tokens that sequences share.

A sequence needs its keys and values in the order of its tokens, but not side by side: its block table says where each block lies (Kwon
et al. 2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention", section 4). So no memory is lost between
sequences, and a block with which several of them begin is held once.

A full block is found by what it holds: (the prefix before it, its tokens). A prefix is a number that the pool gives to each such pair, so
two blocks are equal exactly if their pairs are; no hash decides. A block that no sequence holds can be found until its memory is needed.
"""

from itertools import count

NO_PREFIX = 0  # the prefix before a sequence's first block


class BlockPool:
    """Which blocks are held, by how many sequences, and what is in them."""

    def __init__(self, num_blocks: int, block_size: int):
        self.block_size = block_size
        self.holders = [0] * num_blocks
        self._free = dict.fromkeys(range(num_blocks))  # a set in the order in which blocks were given back
        self._found: dict[tuple[int, tuple[int, ...]], tuple[int, int]] = {}  # (prefix before, tokens) -> (block, prefix after)
        self._held: dict[int, tuple[int, tuple[int, ...]]] = {}  # block -> its key in _found
        self._numbers = count(NO_PREFIX + 1)

    @property
    def num_free(self) -> int:
        """Blocks that no sequence holds."""
        return len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """The number of blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def take(self) -> int:
        """A block to write to; what it held is forgotten."""
        block = next(iter(self._free))
        if block in self._held:
            del self._found[self._held.pop(block)]
        self.hold(block)
        return block

    def hold(self, block: int) -> None:
        """Hold a block that is free or that others hold."""
        self._free.pop(block, None)
        self.holders[block] += 1

    def give_back(self, blocks: list[int]) -> None:
        """End a sequence's hold on its blocks. The last one is reused first, because an earlier one is a beginning of more texts."""
        for block in reversed(blocks):
            self.holders[block] -= 1
            if not self.holders[block]:
                self._free[block] = None

    def find(self, prefix: int, tokens: tuple[int, ...]) -> tuple[int, int] | None:
        """(the block that holds these tokens after this prefix, the prefix that ends with it), or None."""
        return self._found.get((prefix, tokens))

    def share(self, block: int, prefix: int, tokens: tuple[int, ...]) -> int:
        """Let others find a computed block; returns the prefix that ends with it. If another block holds the same, that one is found."""
        key = prefix, tokens
        if key not in self._found:
            self._found[key] = block, next(self._numbers)
            self._held[block] = key
        return self._found[key][1]
