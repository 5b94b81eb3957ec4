"""The operations of speculation in NumPy."""

from typing import Any

import numpy as np

from minllm.kernels.sampling.tensors import SamplingKind, SamplingTensors
from minllm.kernels.slots.state import SlotState
from minllm.kernels.speculation.accept import accept_reference
from minllm.kernels.speculation.advance_spans import advance_spans_reference
from minllm.kernels.speculation.load_spans import load_spans_reference
from minllm.kernels.speculation.prompt_lookup import prompt_lookup_reference
from minllm.kernels.speculation.row_sampling import row_sampling_reference
from minllm.kernels.speculation.state import DraftState
from minllm.ops.protocol import Batch


class NumpySpeculation:
    """Part of NumpyOps."""

    def load_spans(self, slots: np.ndarray, state: SlotState, drafts: DraftState, batch: Batch, block_size: int) -> None:
        """Writes the rows of verifications from their slots."""
        load_spans_reference(slots, state, drafts, batch, block_size)

    def row_sampling(
        self, slots: np.ndarray, state: SlotState, drafts: DraftState, kind: SamplingKind, ahead: int = 0, salt: int = 0
    ) -> tuple[SamplingTensors, np.ndarray]:
        """The sampling parameters of each row, and its slot in them."""
        return row_sampling_reference(slots, state, drafts, kind, ahead, salt)

    def accept(self, chosen: np.ndarray, computed: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """The number of new tokens of each run: int32 [R]."""
        return accept_reference(chosen, computed, slots)

    def advance_spans(self, tokens: np.ndarray, counts: np.ndarray, slots: np.ndarray, state: SlotState, drafts: DraftState) -> None:
        """Appends new tokens to the sequence of each slot."""
        advance_spans_reference(tokens, counts, slots, state, drafts)

    def prompt_lookup(self, slots: np.ndarray, state: SlotState, drafts: DraftState, longest: int, shortest: int) -> Any:
        """Drafts from n-grams; their number in each run: int32 [R]."""
        return prompt_lookup_reference(slots, state, drafts, longest, shortest)
