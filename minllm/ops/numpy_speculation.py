"""The operations of speculation in NumPy."""

from typing import Any

import numpy as np

from minllm.kernels.kv.compact_path import compact_path_reference
from minllm.kernels.sampling.penalties import penalize_reference
from minllm.kernels.sampling.tensors import SamplingKind, SamplingTensors
from minllm.kernels.sampling.thresholds import thresholds_reference
from minllm.kernels.slots.state import SlotState
from minllm.kernels.speculation.accept import accept_reference
from minllm.kernels.speculation.accept_tree import accept_tree_reference
from minllm.kernels.speculation.advance_spans import advance_spans_reference
from minllm.kernels.speculation.distribution import distribution_reference
from minllm.kernels.speculation.draft_rows import (
    room_for_drafts_reference,
    run_slots_reference,
    store_children_reference,
    store_drafts_reference,
)
from minllm.kernels.speculation.load_spans import load_spans_reference
from minllm.kernels.speculation.lookahead import LookaheadState, lookahead_reference
from minllm.kernels.speculation.perturb import perturb_reference
from minllm.kernels.speculation.prompt_lookup import prompt_lookup_reference
from minllm.kernels.speculation.reject_tree import reject_tree_reference
from minllm.kernels.speculation.rejection import reject_reference
from minllm.kernels.speculation.row_sampling import row_sampling_reference
from minllm.kernels.speculation.state import DraftState
from minllm.kernels.speculation.synthetic import accept_synthetic_reference
from minllm.ops.batch import Batch
from minllm.ops.protocol import DraftOps


class NumpySpeculation(DraftOps):
    """Part of NumpyOps."""

    def load_spans(
        self, slots: np.ndarray, state: SlotState, drafts: DraftState, batch: Batch, block_size: int, ahead: int = 0,
        room: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """Writes the rows of verifications from their slots."""
        load_spans_reference(slots, state, drafts, batch, block_size, ahead, room)

    def row_sampling(
        self, slots: np.ndarray, state: SlotState, drafts: DraftState, kind: SamplingKind, ahead: int = 0, salt: int = 0
    ) -> tuple[SamplingTensors, np.ndarray]:
        """The sampling parameters of each row, and the row's slot in them."""
        return row_sampling_reference(slots, state, drafts, kind, ahead, salt)

    def accept(self, chosen: np.ndarray, computed: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """The number of new tokens of each run: int32 [R]."""
        return accept_reference(chosen, computed, slots)

    def accept_tree(
        self, chosen: np.ndarray, computed: np.ndarray, slots: np.ndarray, drafts: DraftState
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
        """New tokens, the rows that yielded them, and their number per run: int32 [R] each."""
        return accept_tree_reference(chosen, computed, slots, drafts.nodes.parents)

    def compact_path(self, cache: np.ndarray, slot_mapping: np.ndarray, path: np.ndarray, counts: np.ndarray) -> None:
        """Moves the accepted tokens of a tree to consecutive slots of the cache."""
        compact_path_reference(cache, slot_mapping, path, counts)

    def accept_synthetic(self, slots: np.ndarray, sampling: SamplingTensors, rate: float) -> np.ndarray:
        """The number of new tokens of each run, accepted at random: int32 [R]."""
        return accept_synthetic_reference(slots, sampling, rate)

    def distribution(self, logits: np.ndarray, sampling: SamplingTensors, slots: np.ndarray) -> np.ndarray:
        """The log-probabilities from which each row is sampled: float32 [R, vocab]."""
        x = penalize_reference(logits, sampling, slots) if sampling.kind is SamplingKind.ADJUSTED else logits
        return distribution_reference(x, thresholds_reference(x, sampling, slots), sampling, slots)

    def reject(
        self, p: np.ndarray, chosen: np.ndarray, computed: np.ndarray, slots: np.ndarray, sampling: SamplingTensors, drafts: DraftState
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """The new tokens of each run, and their number: int32 [R] both."""
        return reject_reference(p, drafts.log_q, chosen, computed, slots, sampling)

    def reject_tree(
        self, p: np.ndarray, chosen: np.ndarray, computed: np.ndarray, slots: np.ndarray, sampling: SamplingTensors, drafts: DraftState
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
        """The token after each row, new tokens, the rows that yielded them, and their number per run: int32 [R] each."""
        return reject_tree_reference(p, drafts.log_q, chosen, computed, slots, drafts.nodes.parents, sampling)

    def run_slots(self, slots: np.ndarray, count: int, each: int = 1) -> np.ndarray:
        """The slot of each run, `each` times: int32 [count * each]."""
        return run_slots_reference(slots, count, each)

    def perturb(self, log_q: np.ndarray, logits: np.ndarray, sampling: SamplingTensors, slots: np.ndarray) -> np.ndarray:
        """Scores float32 [R, vocab]: the m largest are m samples without replacement."""
        return perturb_reference(log_q, logits, sampling, slots)

    def store_children(
        self, tokens: np.ndarray, slots: np.ndarray, first_node: int, drafts: DraftState, log_q: np.ndarray | None = None
    ) -> None:  # fmt: skip
        """Stores the drafts after neighbouring nodes of a tree."""
        store_children_reference(tokens, slots, first_node, drafts, log_q)

    def store_drafts(
        self, tokens: np.ndarray, slots: np.ndarray, index: int, drafts: DraftState, log_q: np.ndarray | None = None
    ) -> None:  # fmt: skip
        """Stores draft number `index` of each slot."""
        store_drafts_reference(tokens, slots, index, drafts, log_q)

    def room_for_drafts(self, slots: np.ndarray, state: SlotState, room: np.ndarray, drafts: DraftState) -> np.ndarray:
        """The number of drafts with room for their keys: int32 [R]."""
        return room_for_drafts_reference(slots, state.lengths, room, drafts.drafts.shape[1])

    def advance_spans(self, tokens: np.ndarray, counts: np.ndarray, slots: np.ndarray, state: SlotState, drafts: DraftState) -> None:
        """Appends new tokens to the sequence of each slot."""
        advance_spans_reference(tokens, counts, slots, state, drafts)

    def prompt_lookup(self, slots: np.ndarray, state: SlotState, drafts: DraftState, longest: int, shortest: int) -> Any:
        """Writes drafts from n-grams; returns their number in each run: int32 [R]."""
        return prompt_lookup_reference(slots, state, drafts, longest, shortest)

    def lookahead(
        self, slots: np.ndarray, state: SlotState, drafts: DraftState, computed: np.ndarray, chosen: np.ndarray, pools: LookaheadState
    ) -> np.ndarray:  # fmt: skip
        """Writes drafts of lookahead decoding; returns their number in each run: int32 [R]."""
        return lookahead_reference(slots, state.newest_tokens, drafts, computed, chosen, pools)
