"""Speculation on the device: rows of drafts before a forward, and after it acceptance and the next drafts.

    load      the rows of each verification are loaded from its slot
    (the model's forward)
    choose    the sampler chooses a token for every row, drafts are accepted up to the first wrong one, the slots advance, and the source
              makes the next drafts

All of it is launched without waiting: the device derives the rows of the next step from the numbers of accepted tokens, before the host has
read them.
"""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from minllm.cache.kv_cache import KVCache
from minllm.engine.requests.sequence import Sequence
from minllm.engine.running.machine import Machine
from minllm.engine.running.slots import Slots
from minllm.errors import CaptureError
from minllm.kernels.sampling.tensors import SamplingKind
from minllm.kernels.slots.state import SlotState
from minllm.kernels.speculation.state import DraftState
from minllm.kernels.speculation.token_tree import TokenTree
from minllm.ops.batch import Array, Batch
from minllm.ops.protocol import Ops


class Chosen(NamedTuple):
    """The tokens that a step chose: int32 [R] on the device each."""

    tokens: Array  # the sampler's token after each row, also after rejected rows
    counts: Array  # number of new tokens of a run in its first row, 0 in its other rows
    path: Array = None  # a run's first rows hold the row of each of its new tokens; None without a tree: these are its first rows


class DraftSource(Protocol):
    """A source of drafts.

    reads_history: whether it reads DraftState.token_history. reads_room: whether it reads Batch.room. draws: whether its drafts are sampled
    from DraftState.log_q.
    """

    reads_history: bool
    reads_room: bool
    draws: bool

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        """Copy blocks, pairs (source, destination), as in the model's cache; does nothing for a source without its own cache."""
        ...

    def enter(self, slot: int, token_ids: list[int], drafts: DraftState, machine: Machine) -> None:
        """Reset the source's state of a slot, which a sequence with these tokens has entered."""
        ...

    def compute_keys(self, batch: Batch) -> None:
        """Compute the keys and values of a batch without making drafts; does nothing for a source without its own cache."""
        ...

    def propose(self, slots: Array, batch: Batch, state: SlotState, drafts: DraftState, kind: SamplingKind, chosen: Chosen) -> Any:
        """Write drafts for the slots of R rows, int32 [R], which the step has advanced. batch, chosen: the model's last forward.

        Returns the number of drafts in the first row of each run, int32 [R], or None if each slot got as many as there is room for.
        """
        ...


def compact(ops: Ops, cache: KVCache, batch: Batch, path: Array, counts: Array) -> None:
    """Move the accepted path of each run of the batch to consecutive slots of a cache."""
    for array in cache.arrays:
        ops.compact_path(array, batch.slot_mapping, path, counts)


class Speculator:
    """The drafts of all slots.

    num_drafts: the maximum per slot. width: the maximum number of tokens of a sequence. tree: the tree of which the drafts are nodes, if
    any; its accepted paths are compacted in `cache`. A source that raises an error is switched off with a warning; requests go on without
    drafts.
    """

    def __init__(
        self, ops: Ops, machine: Machine, slots: Slots, source: DraftSource, num_drafts: int, width: int,
        synthetic_rate: float | None = None, tree: TokenTree | None = None, cache: KVCache | None = None,
    ):  # fmt: skip
        """synthetic_rate: for benchmarks, the probability with which a draft is accepted, whatever the model says."""
        self.ops, self.machine, self.slots, self.synthetic_rate = ops, machine, slots, synthetic_rate
        self.source: DraftSource | None = source
        history, vocab = width if source.reads_history else 1, slots.vocab_size if source.draws else 0
        self._no_drafts: dict[tuple[int, ...], Any] = {}  # shape -> zeros, made outside of captures
        arrays, self.cache = None if tree is None else tree.on(ops, width), cache
        self.drafts = DraftState.make(ops.zeros, slots.state.lengths.shape[0], num_drafts, history, vocab, arrays)

    @property
    def query_len(self) -> int:
        """The maximum number of rows of a verification: the newest token and drafts."""
        return 1 + self.drafts.drafts.shape[1]

    @property
    def pauses(self) -> bool:
        """Whether steps may skip making drafts: those of a draft model take time, but a tree is verified whole in each step."""
        return self.source is not None and self.source.reads_room and self.drafts.tree is None

    @property
    def reads_room(self) -> bool:
        """Whether a step needs Batch.room: it changes while sequences grow."""
        return self.synthetic_rate is not None or (self.source is not None and self.source.reads_room)

    def enter(self, sequences: list[Sequence]) -> None:
        """Write the token histories of sequences that have entered their slots, and reset the source's state of them."""
        if self.source is None:
            return
        for sequence in sequences:
            known = sequence.token_ids(0, sequence.num_tokens)
            if self.source.reads_history:
                row = np.zeros(self.drafts.token_history.shape[1], np.int32)
                row[: len(known)] = known
                self.machine.write(self.drafts.token_history[sequence.slot], row)
            self.source.enter(sequence.slot, known, self.drafts, self.machine)

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        """Copy blocks of the source's cache, as in the model's cache."""
        if self.source is not None:
            self.source.copy_blocks(copies)

    def catch_up(self, batch: Batch) -> None:
        """Compute the source's keys and values of tokens that it has missed."""
        self._ask(lambda source: source.compute_keys(batch))

    def load(self, slots: Array, batch: Batch, block_size: int) -> None:
        """Write the rows of the sequences that verify drafts. slots, int32 [R]: the slot of each row that gets logits."""
        self.ops.load_spans(slots, self.slots.state, self.drafts, batch.verifications(), block_size)

    def on_tree(self, batch: Batch) -> Batch:
        """The batch with the attention mask of the tree of drafts for its verifications, if there is a tree."""
        return replace(batch, tree=self.drafts.tree) if batch.num_verifications and batch.max_query_len > 1 else batch

    def choose(self, logits: Array, slots: Array, batch: Batch, kind: SamplingKind) -> tuple[Any, ...]:
        """(tokens, counts, number of next drafts), int32 [R] each, from the logits [R, vocab] of the rows of `slots` [R].

        The first rows of a run hold its new tokens; its first row holds their number, and that of the next drafts. With a tree, the rows of
        the new tokens follow as a fourth array (Chosen.path).
        """
        ops, state, sampling, row_slots = self.ops, self.slots.state, self.slots.sampling(kind), slots
        if kind is not SamplingKind.GREEDY:
            sampling, row_slots = ops.row_sampling(slots, state, self.drafts, kind)
        tokens = ops.sample(logits, sampling, row_slots)
        if self.drafts.tree is not None:
            return self._choose_path(logits, sampling, row_slots, tokens, slots, batch, kind)
        if self.synthetic_rate is not None:
            counts = ops.accept_synthetic(slots, state.sampling, self.synthetic_rate)
        elif kind is SamplingKind.GREEDY or self.drafts.log_q is None:
            counts = ops.accept(tokens, batch.token_ids, slots)
        else:
            p = ops.distribution(logits, sampling, row_slots)
            tokens, counts = ops.reject(p, tokens, batch.token_ids, slots, state.sampling, self.drafts)
        ops.advance_spans(tokens, counts, slots, state, self.drafts)
        if not batch.makes_drafts:
            return tokens, counts, self._skip(slots, batch)
        return tokens, counts, self._propose(slots, batch, kind, Chosen(tokens, counts))

    def _choose_path(
        self, logits: Array, sampling: Any, row_slots: Array, tokens: Array, slots: Array, batch: Batch, kind: SamplingKind
    ) -> tuple[Any, ...]:  # fmt: skip
        """`choose` with a tree, after the sampler's tokens."""
        ops, state = self.ops, self.slots.state
        if kind is SamplingKind.GREEDY or self.drafts.log_q is None:
            new, path, counts = ops.accept_tree(tokens, batch.token_ids, slots, self.drafts)
        else:
            p = ops.distribution(logits, sampling, row_slots)
            tokens, new, path, counts = ops.reject_tree(p, tokens, batch.token_ids, slots, state.sampling, self.drafts)
        if self.cache is not None:
            compact(ops, self.cache, batch, path, counts)
        ops.advance_spans(new, counts, slots, state, self.drafts)
        return tokens, counts, self._propose(slots, batch, kind, Chosen(tokens, counts, path)), path

    def _propose(self, slots: Array, batch: Batch, kind: SamplingKind, chosen: Chosen) -> Any:
        """The number of next drafts, int32 [R]."""
        state = self.slots.state
        found = self._ask(lambda source: source.propose(slots, batch, state, self.drafts, kind, chosen))
        if self.source is None:
            return self._zeros(slots.shape)
        if found is None or self.synthetic_rate is not None:  # at a synthetic rate, drafts that were not found are accepted too
            return self.ops.room_for_drafts(slots, state, batch.room, self.drafts)
        return found

    def _skip(self, slots: Array, batch: Batch) -> Any:
        """Make no drafts, int32 [R] zeros. Prompts are computed nevertheless: other sequences may share their blocks."""
        self._ask(lambda source: source.compute_keys(batch))
        return self._zeros(slots.shape)

    def _ask(self, question: Callable[[DraftSource], Any]) -> Any:
        """The result of a call of the source; None if the source is switched off or the call fails."""
        if self.source is None:
            return None
        try:
            return question(self.source)
        except CaptureError:
            raise  # StepGraphs.capture then launches the step before it captures it
        except Exception as error:  # noqa: BLE001 - whatever it is, no request needs drafts
            self.source = None
            warnings.warn(f"Speculation is switched off, because drafting failed: {error!r}.", RuntimeWarning, stacklevel=3)
            return None

    def _zeros(self, shape: tuple[int, ...]) -> Any:
        if shape not in self._no_drafts:
            self._no_drafts[shape] = self.ops.zeros(shape, np.int32)
        return self._no_drafts[shape]
