"""The slots of running sequences on the device, and how the host keeps them up to date.

The changes between two steps (sequences that entered, block tables that grew) are gathered into one list of words, for one upload and one
launch; the work is proportional to the number of changes.
"""

import numpy as np

from minllm.cache.policy import CachePolicy
from minllm.engine.requests.sequence import Sequence
from minllm.engine.scheduling.step import Step
from minllm.kernels.sampling.parameters import kind_of, sampling_entries
from minllm.kernels.sampling.tensors import SamplingKind, SamplingTensors
from minllm.kernels.slots.state import SlotState


class Slots:
    """`num_slots` slots with block tables of `width` columns. policy: the source of the block tables."""

    def __init__(self, ops, machine, policy: CachePolicy, num_slots: int, width: int, vocab_size: int):
        self.ops, self.machine, self.policy, self.vocab_size = ops, machine, policy, vocab_size
        self.state = SlotState.make(ops.zeros, num_slots, width)
        self._kinds = [SamplingKind.GREEDY] * num_slots

    def changes(self, step: Step) -> np.ndarray:
        """The words that a step changes, int32 [n, 2]: index, word. Arrays over the vocabulary are written here, at once."""
        found = [self._entry(sequence) for sequence in step.entered]
        if grown := [cell for one, position in step.grown if one not in step.entered for cell in self._growth(one, position)]:
            found.append(self.state.block_pairs(*np.array(grown).T))
        return np.concatenate(found) if found else np.empty((0, 2), np.int32)

    def kind(self, sequences: list[Sequence]) -> SamplingKind:
        """The kind of kernels that choose the next tokens of these sequences."""
        return max([self._kinds[sequence.slot] for sequence in sequences], default=SamplingKind.GREEDY)

    def sampling(self, kind: SamplingKind) -> SamplingTensors:
        """The sampling parameters of all slots, for rows of this kind."""
        return self.state.sampling.of_kind(kind)

    def _entry(self, sequence: Sequence) -> np.ndarray:
        """All words of a sequence that enters its slot."""
        params, slot = sequence.params, sequence.slot
        entries = sampling_entries(
            params, self.vocab_size, prompt=sequence.prompt_token_ids, output=sequence.output_token_ids,
            ending_token_ids=sorted(sequence.ending_token_ids), banned_token_ids=sequence.banned_token_ids,
        )  # fmt: skip
        self._kinds[slot] = kind_of(params, sequence.banned_token_ids)
        if entries.vocabulary and self.state.sampling.token_flags is None:
            self.state.sampling = self.state.sampling.with_vocabulary_arrays(self.ops.zeros, self.vocab_size)
        for name, row in entries.vocabulary.items():
            self.machine.write(getattr(self.state.sampling, name)[slot], row)
        known = sequence.num_tokens
        newest = sequence.token_ids(known - 1, known)[0]
        table = self.policy.table(sequence)
        return self.state.pairs(slot, newest_tokens=newest, lengths=known, block_tables=table, **entries.words)

    def _growth(self, sequence: Sequence, position: int) -> list[tuple[int, int, int]]:
        """(slot, column, block) from the block of a position on: this block may be a copy of a shared one, and later ones are new."""
        table, first = self.policy.table(sequence), position // self.policy.block_size
        return [(sequence.slot, column, table[column]) for column in range(first, len(table))]
