"""The operations of speculation on a GPU."""

from typing import Any

import numpy as np

from minllm.kernels.kv.compact_path import compact_path
from minllm.kernels.sampling.penalties import penalize
from minllm.kernels.sampling.tensors import SamplingKind, SamplingTensors
from minllm.kernels.sampling.thresholds import write_thresholds
from minllm.kernels.slots.state import SlotState
from minllm.kernels.speculation.accept import accept
from minllm.kernels.speculation.accept_tree import accept_tree
from minllm.kernels.speculation.advance_spans import advance_spans
from minllm.kernels.speculation.distribution import distribution
from minllm.kernels.speculation.draft_rows import room_for_drafts, run_slots, store_children, store_drafts
from minllm.kernels.speculation.load_spans import load_spans
from minllm.kernels.speculation.lookahead import LookaheadState, lookahead
from minllm.kernels.speculation.perturb import perturb
from minllm.kernels.speculation.prompt_lookup import prompt_lookup
from minllm.kernels.speculation.reject_tree import reject_tree
from minllm.kernels.speculation.rejection import reject
from minllm.kernels.speculation.row_sampling import row_sampling
from minllm.kernels.speculation.state import DraftState
from minllm.kernels.speculation.synthetic import accept_synthetic
from minllm.ops.batch import Array, Batch
from minllm.ops.cuda_base import CudaBase


class CudaSpeculation(CudaBase):
    """Part of CudaOps."""

    def load_spans(
        self, slots: Array, state: SlotState, drafts: DraftState, batch: Batch, block_size: int, ahead: int = 0, room: Array = None
    ) -> None:  # fmt: skip
        """Writes the rows of verifications from their slots."""
        load_spans(slots, state, drafts, batch, block_size, ahead, room, self.stream)

    def row_sampling(
        self, slots: Array, state: SlotState, drafts: DraftState, kind: SamplingKind, ahead: int = 0, salt: int = 0
    ) -> tuple[SamplingTensors, Any]:
        """The sampling parameters of each row, and the row's slot in them."""
        return row_sampling(slots, state, drafts, kind, self.empty, ahead, salt, self.stream)

    def accept(self, chosen: Array, computed: Array, slots: Array) -> Array:
        """The number of new tokens of each run: int32 [R]."""
        counts, own = self.empty(slots.shape, np.int32), self.own.get("accept")
        launch = accept if own is None else own.launch
        launch(chosen, computed, slots, counts, self.stream)
        return counts

    def accept_tree(self, chosen: Array, computed: Array, slots: Array, drafts: DraftState) -> tuple[Array, Array, Array]:
        """New tokens, the rows that yielded them, and their number per run: int32 [R] each."""
        tokens, path, counts = (self.empty(slots.shape, np.int32) for _ in range(3))
        accept_tree(chosen, computed, slots, drafts.nodes, tokens, path, counts, self.stream)
        return tokens, path, counts

    def compact_path(self, cache: Array, slot_mapping: Array, path: Array, counts: Array) -> None:
        """Moves the accepted tokens of a tree to consecutive slots of the cache."""
        compact_path(cache, slot_mapping, path, counts, self.stream)

    def accept_synthetic(self, slots: Array, sampling: SamplingTensors, rate: float) -> Array:
        """The number of new tokens of each run, accepted at random: int32 [R]."""
        counts = self.empty(slots.shape, np.int32)
        accept_synthetic(slots, sampling, rate, counts, self.stream)
        return counts

    def distribution(self, logits: Array, sampling: SamplingTensors, slots: Array) -> Array:
        """The log-probabilities from which each row is sampled: float32 [R, vocab]."""
        out, thresholds = self.empty(logits.shape, np.float32), self.empty(slots.shape, np.float32)
        if sampling.kind is SamplingKind.ADJUSTED:
            penalize(logits, sampling, slots, out, self.stream)
            logits = out
        write_thresholds(logits, sampling, slots, thresholds, self.stream)
        distribution(logits, thresholds, sampling, slots, out, self.stream)
        return out

    def reject(
        self, p: Array, chosen: Array, computed: Array, slots: Array, sampling: SamplingTensors, drafts: DraftState
    ) -> tuple[Array, Array]:  # fmt: skip
        """The new tokens of each run, and their number: int32 [R] both."""
        tokens, counts = self.empty(slots.shape, np.int32), self.empty(slots.shape, np.int32)
        reject(p, drafts.log_q, chosen, computed, slots, sampling, tokens, counts, self.stream)
        return tokens, counts

    def reject_tree(
        self, p: Array, chosen: Array, computed: Array, slots: Array, sampling: SamplingTensors, drafts: DraftState
    ) -> tuple[Array, Array, Array, Array]:  # fmt: skip
        """The token after each row, new tokens, the rows that yielded them, and their number per run: int32 [R] each."""
        by_row, tokens, path, counts = (self.empty(slots.shape, np.int32) for _ in range(4))
        reject_tree(p, drafts.log_q, chosen, computed, slots, drafts.nodes, sampling, by_row, tokens, path, counts, self.stream)
        return by_row, tokens, path, counts

    def run_slots(self, slots: Array, count: int, each: int = 1) -> Array:
        """The slot of each run, `each` times: int32 [count * each]."""
        out = self.empty((count * each,), np.int32)
        run_slots(slots, out, self.stream, each)
        return out

    def perturb(self, log_q: Array, logits: Array, sampling: SamplingTensors, slots: Array) -> Array:
        """Scores float32 [R, vocab]: the m largest are m samples without replacement."""
        scores = self.empty(logits.shape, np.float32)
        perturb(log_q, logits, sampling, slots, scores, self.stream)
        return scores

    def store_children(self, tokens: Array, slots: Array, first_node: int, drafts: DraftState, log_q: Array = None) -> None:
        """Stores the drafts after neighbouring nodes of a tree."""
        store_children(tokens, slots, first_node, drafts, log_q, self.stream)

    def store_drafts(self, tokens: Array, slots: Array, index: int, drafts: DraftState, log_q: Array = None) -> None:
        """Stores draft number `index` of each slot."""
        store_drafts(tokens, slots, index, drafts, log_q, self.stream)

    def room_for_drafts(self, slots: Array, state: SlotState, room: Array, drafts: DraftState) -> Array:
        """The number of drafts with room for their keys: int32 [R]."""
        counts = self.empty(slots.shape, np.int32)
        room_for_drafts(slots, state.lengths, room, drafts.drafts.shape[1], counts, self.stream)
        return counts

    def advance_spans(self, tokens: Array, counts: Array, slots: Array, state: SlotState, drafts: DraftState) -> None:
        """Appends new tokens to the sequence of each slot."""
        advance_spans(tokens, counts, slots, state, drafts, self.stream)

    def prompt_lookup(self, slots: Array, state: SlotState, drafts: DraftState, longest: int, shortest: int) -> Array:
        """Writes drafts from n-grams; returns their number in each run: int32 [R]."""
        counts = self.empty(slots.shape, np.int32)
        prompt_lookup(slots, state, drafts, longest, shortest, counts, self.stream)
        return counts

    def lookahead(self, slots: Array, state: SlotState, drafts: DraftState, computed: Array, chosen: Array, pools: LookaheadState) -> Array:
        """Writes drafts of lookahead decoding; returns their number in each run: int32 [R]."""
        counts = self.empty(slots.shape, np.int32)
        lookahead(slots, state.newest_tokens, drafts, computed, chosen, pools, counts, self.stream)
        return counts
