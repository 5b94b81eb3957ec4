"""Speculation on the device: rows of drafts before a forward, and after it acceptance and the next drafts.

    load      the rows of each verification come from its slot
    (the model's forward)
    choose    the sampler chooses a token for every row, drafts are accepted while they are what it chose, the slots move on, and the
              source drafts what may come next

All of it is launched without waiting: how many tokens were accepted decides the rows of the next step on the device, whether the host knows
it or not.
"""

from typing import Any, Protocol

import numpy as np

from minllm.engine.requests.sequence import Sequence
from minllm.engine.running.slots import Slots
from minllm.kernels.sampling.tensors import SamplingKind
from minllm.kernels.speculation.state import DraftState
from minllm.ops.protocol import Batch


class DraftSource(Protocol):
    """Guesses tokens."""

    def propose(self, slots: Any, batch: Batch, drafts: DraftState) -> Any:
        """Write drafts for the slots of R rows, int32 [R], which the step has moved on; returns their number in the first row of each run,
        0 in others: int32 [R]. batch: what the model has just computed."""
        ...


class Speculator:
    """The drafts of all slots. num_drafts: the most per slot. width: the most tokens of a sequence."""

    def __init__(self, ops: Any, machine: Any, slots: Slots, source: DraftSource, num_drafts: int, width: int):
        self.ops, self.machine, self.slots, self.source = ops, machine, slots, source
        self.drafts = DraftState.make(ops.zeros, slots.state.lengths.shape[0], num_drafts, width)

    def enter(self, sequences: list[Sequence]) -> None:
        """Write the token histories of sequences that entered their slots."""
        for sequence in sequences:
            row = np.zeros(self.drafts.token_history.shape[1], np.int32)
            row[: sequence.num_tokens] = sequence.token_ids(0, sequence.num_tokens)
            self.machine.write(self.drafts.token_history[sequence.slot], row)

    def load(self, slots: Any, batch: Batch, block_size: int) -> None:
        """Write the rows of the sequences that verify. slots int32 [R]: of the rows that get logits."""
        self.ops.load_spans(slots, self.slots.state, self.drafts, batch.verifications(), block_size)

    def choose(self, logits: Any, slots: Any, batch: Batch, kind: SamplingKind) -> tuple[Any, Any, Any]:
        """(tokens, counts, number of next drafts), int32 [R] each, from the logits [R, vocab] of rows that work for `slots` [R].

        A run's new tokens are the first ones of its rows; their number, and that of the drafts, stand in its first row.
        """
        ops, state, sampling, row_slots = self.ops, self.slots.state, self.slots.sampling(kind), slots
        if kind is not SamplingKind.GREEDY:
            sampling, row_slots = ops.row_sampling(slots, state, self.drafts, kind)
        tokens = ops.sample(logits, sampling, row_slots)
        counts = ops.accept(tokens, batch.token_ids, slots)
        ops.advance_spans(tokens, counts, slots, state, self.drafts)
        return tokens, counts, self.source.propose(slots, batch, self.drafts)
