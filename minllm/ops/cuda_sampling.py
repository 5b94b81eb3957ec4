"""The next tokens on a GPU: sampling, log-probabilities, and the state of the running sequences in their slots."""

import numpy as np

from minllm.kernels.kv.move_window import move_window
from minllm.kernels.sampling.log_probabilities import LogProbabilities, LogProbabilitiesScratch, log_probabilities
from minllm.kernels.sampling.mask import mask_logits
from minllm.kernels.sampling.sample import SampleScratch, sample
from minllm.kernels.sampling.tensors import SamplingTensors
from minllm.kernels.slots.advance import advance
from minllm.kernels.slots.load_rows import load_rows
from minllm.kernels.slots.state import SlotState
from minllm.kernels.slots.write_slots import write_slots
from minllm.ops.batch import Array, Batch
from minllm.ops.cuda_base import CudaBase


class CudaSampling(CudaBase):
    """Part of CudaOps."""

    def sample(self, logits: Array, sampling: SamplingTensors, slots: Array) -> Array:
        """One token per row: int32 [R]."""
        rows, vocab = logits.shape
        out = self.empty((rows,), np.int32)
        sample(logits, sampling, slots, out, SampleScratch.allocate(self.empty, rows, vocab, sampling.kind), self.stream)
        return out

    def mask_logits(self, logits: Array, indices: Array, masks: Array) -> Array:
        """The logits with -inf for the tokens that a row's mask excludes."""
        out = self.empty(logits.shape, np.float32)
        mask_logits(logits, indices, masks, out, self.stream)
        return out

    def log_probabilities(self, logits: Array, token_ids: Array, top: int) -> LogProbabilities:
        """Log-probabilities of the chosen and of the `top` likeliest tokens of each row."""
        rows, vocab = logits.shape
        top = min(top, vocab)
        out, scratch = LogProbabilities.allocate(self.empty, rows, top), LogProbabilitiesScratch.allocate(self.empty, rows, vocab, top)
        log_probabilities(logits, token_ids, out, scratch, self.stream)
        return out

    def write_slots(self, state: SlotState, pairs: Array) -> None:
        """Writes words of the slots' state: pairs (index, word), int32 [n, 2]."""
        write_slots(state.words, pairs, self.stream)

    def load_rows(
        self, slots: Array, state: SlotState, batch: Batch, block_size: int, residual_window: int = 0, pads: bool = True
    ) -> None:  # fmt: skip
        """Writes the arrays of a decode batch from its rows' slots."""
        load_rows(slots, state, batch, block_size, pads, self.stream)
        if batch.recent is not None:
            recent = (batch.recent.slot_mapping, batch.recent.context_lens, batch.recent.block_tables)
            move_window(batch.positions, batch.context_lens, slots, *recent, residual_window, self.stream)

    def advance(self, token_ids: Array, slots: Array, state: SlotState) -> None:
        """Appends one new token to the sequence of each slot."""
        advance(token_ids, slots, state, self.stream)
