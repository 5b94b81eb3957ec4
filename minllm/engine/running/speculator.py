"""Speculation on the device: rows of drafts before a forward, and after it acceptance and the next drafts.

    load      the rows of each verification come from its slot
    (the model's forward)
    choose    the sampler chooses a token for every row, drafts are accepted as far as they are right, the slots move on, and the source
              drafts what may come next

All of it is launched without waiting: how many tokens were accepted decides the rows of the next step on the device, whether the host knows
it or not.
"""

import warnings
from typing import Any, Protocol

import numpy as np

from minllm.engine.requests.sequence import Sequence
from minllm.engine.running.slots import Slots
from minllm.errors import CaptureError
from minllm.kernels.sampling.tensors import SamplingKind
from minllm.kernels.slots.state import SlotState
from minllm.kernels.speculation.state import DraftState
from minllm.ops.protocol import Batch


class DraftSource(Protocol):
    """Guesses tokens. reads_history: whether it reads DraftState.token_history. reads_room: whether it reads Batch.room. draws: whether its
    drafts are drawn from DraftState.log_q."""

    reads_history: bool
    reads_room: bool
    draws: bool

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        """The cache's blocks are copied, pairs (source, destination); a source with a cache of its own under these tables does the same."""
        ...

    def propose(self, slots: Any, batch: Batch, state: SlotState, drafts: DraftState, kind: SamplingKind) -> Any:
        """Write drafts for the slots of R rows, int32 [R], which the step has moved on. batch: what the model has just computed.

        Returns the number of drafts in the first row of each run, int32 [R], or None if each slot got all that there is room for.
        """
        ...


class Speculator:
    """The drafts of all slots. num_drafts: the most per slot. width: the most tokens of a sequence.

    A source that raises an error is switched off with a warning; requests go on without drafts.
    """

    def __init__(
        self, ops: Any, machine: Any, slots: Slots, source: DraftSource, num_drafts: int, width: int, synthetic_rate: float | None = None
    ):  # fmt: skip
        """synthetic_rate: for benchmarks, the probability with which a draft is accepted, whatever the model says."""
        self.ops, self.machine, self.slots, self.source, self.synthetic_rate = ops, machine, slots, source, synthetic_rate
        history, vocab = width if source.reads_history else 1, slots.vocab_size if source.draws else 0
        self._no_drafts: dict[tuple[int, ...], Any] = {}  # arrays of zeros, which no capture may make
        self.drafts = DraftState.make(ops.zeros, slots.state.lengths.shape[0], num_drafts, history, vocab)

    @property
    def query_len(self) -> int:
        """The most rows of a verification: the newest token and drafts."""
        return 1 + self.drafts.drafts.shape[1]

    @property
    def reads_room(self) -> bool:
        """Whether a step needs Batch.room: it changes while sequences grow."""
        return self.synthetic_rate is not None or (self.source is not None and self.source.reads_room)

    def enter(self, sequences: list[Sequence]) -> None:
        """Write the token histories of sequences that entered their slots."""
        if self.source is None or not self.source.reads_history:
            return
        for sequence in sequences:
            row = np.zeros(self.drafts.token_history.shape[1], np.int32)
            row[: sequence.num_tokens] = sequence.token_ids(0, sequence.num_tokens)
            self.machine.write(self.drafts.token_history[sequence.slot], row)

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        """Blocks of the cache are copied."""
        if self.source is not None:
            self.source.copy_blocks(copies)

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
        if self.synthetic_rate is not None:
            counts = ops.accept_synthetic(slots, state.sampling, self.synthetic_rate)
        elif kind is SamplingKind.GREEDY or self.drafts.log_q is None:
            counts = ops.accept(tokens, batch.token_ids, slots)
        else:
            p = ops.distribution(logits, sampling, row_slots)
            tokens, counts = ops.reject(p, tokens, batch.token_ids, slots, state.sampling, self.drafts)
        ops.advance_spans(tokens, counts, slots, state, self.drafts)
        return tokens, counts, self._propose(slots, batch, kind)

    def _propose(self, slots: Any, batch: Batch, kind: SamplingKind) -> Any:
        """The number of next drafts, int32 [R]."""
        state, found = self.slots.state, None
        if self.source is not None:
            try:
                found = self.source.propose(slots, batch, state, self.drafts, kind)
            except CaptureError:
                raise  # the step is launched, and captured then
            except Exception as error:  # noqa: BLE001 - whatever it is, no request needs drafts
                self.source = None
                warnings.warn(f"Speculation is switched off, because drafting failed: {error!r}.", RuntimeWarning, stacklevel=2)
        if self.source is None:
            if slots.shape not in self._no_drafts:
                self._no_drafts[slots.shape] = self.ops.zeros(slots.shape, np.int32)
            return self._no_drafts[slots.shape]
        if found is None or self.synthetic_rate is not None:  # chance accepts what was not found, too
            return self.ops.room_for_drafts(slots, state, batch.room, self.drafts)
        return found
