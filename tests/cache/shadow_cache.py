"""A cache of token ids instead of keys and values: what a policy's tables point to can then be compared with what was written."""

import numpy as np

from minllm.cache.policy import CachePolicy


class ShadowCache:
    """Follows a policy as the engine does: copies first, then writes. `-1` is a slot that nobody wrote."""

    def __init__(self, policy: CachePolicy):
        self.policy = policy
        self.slots = np.full(policy.num_blocks * policy.block_size, -1)
        self.written: dict[object, list[int]] = {}  # sequence -> the tokens that must be found through its table

    def apply_copies(self) -> None:
        """One after the other, as the interface says."""
        blocks = self.slots.reshape(self.policy.num_blocks, self.policy.block_size)
        for source, destination in self.policy.take_copies():
            blocks[destination] = blocks[source]

    def write(self, sequence, start: int) -> None:
        """The tokens of a sequence from `start` on reach the slots that its table names."""
        self.apply_copies()
        token_ids = self.policy.tokens(sequence)
        positions = np.arange(start, len(token_ids))
        self.slots[self._slots(sequence, positions)] = token_ids[start:]
        self.written[sequence] = token_ids

    def read(self, sequence) -> list[int]:
        """What an attention kernel would see of a sequence."""
        return self.slots[self._slots(sequence, np.arange(len(self.policy.tokens(sequence))))].tolist()

    def _slots(self, sequence, positions) -> np.ndarray:
        table, size = np.asarray(self.policy.table(sequence), int), self.policy.block_size
        return table[positions // size] * size + positions % size

    def check(self) -> None:
        """The policy's own invariants, and every sequence reads what it wrote."""
        self.policy.check()
        for sequence, token_ids in self.written.items():
            assert self.read(sequence) == token_ids == self.policy.tokens(sequence), sequence
