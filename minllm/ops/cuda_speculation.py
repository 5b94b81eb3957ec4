"""The operations of speculation on a GPU."""

from typing import Any

import numpy as np

from minllm.kernels.sampling.tensors import SamplingKind, SamplingTensors
from minllm.kernels.slots.state import SlotState
from minllm.kernels.speculation.accept import accept
from minllm.kernels.speculation.advance_spans import advance_spans
from minllm.kernels.speculation.load_spans import load_spans
from minllm.kernels.speculation.prompt_lookup import prompt_lookup
from minllm.kernels.speculation.row_sampling import row_sampling
from minllm.kernels.speculation.state import DraftState
from minllm.ops.cuda_base import CudaBase
from minllm.ops.protocol import Batch


class CudaSpeculation(CudaBase):
    """Part of CudaOps."""

    def load_spans(self, slots: Any, state: SlotState, drafts: DraftState, batch: Batch, block_size: int) -> None:
        """Writes the rows of verifications from their slots."""
        load_spans(slots, state, drafts, batch, block_size, self.stream)

    def row_sampling(
        self, slots: Any, state: SlotState, drafts: DraftState, kind: SamplingKind, ahead: int = 0, salt: int = 0
    ) -> tuple[SamplingTensors, Any]:
        """The sampling parameters of each row, and its slot in them."""
        return row_sampling(slots, state, drafts, kind, self.empty, ahead, salt, self.stream)

    def accept(self, chosen: Any, computed: Any, slots: Any) -> Any:
        """The number of new tokens of each run: int32 [R]."""
        counts = self.empty(slots.shape, np.int32)
        accept(chosen, computed, slots, counts, self.stream)
        return counts

    def advance_spans(self, tokens: Any, counts: Any, slots: Any, state: SlotState, drafts: DraftState) -> None:
        """Appends new tokens to the sequence of each slot."""
        advance_spans(tokens, counts, slots, state, drafts, self.stream)

    def prompt_lookup(self, slots: Any, state: SlotState, drafts: DraftState, longest: int, shortest: int) -> Any:
        """Drafts from n-grams; their number in each run: int32 [R]."""
        counts = self.empty(slots.shape, np.int32)
        prompt_lookup(slots, state, drafts, longest, shortest, counts, self.stream)
        return counts
