"""Drafts from the model itself: n-grams from a window of guesses that it computes in every step (kernels/speculation/lookahead.py)."""

from typing import Any

import numpy as np

from minllm.engine.running.machine import Machine
from minllm.engine.running.speculator import Chosen
from minllm.kernels.sampling.tensors import SamplingKind
from minllm.kernels.slots.state import SlotState
from minllm.kernels.speculation.lookahead import LookaheadState
from minllm.kernels.speculation.state import DraftState
from minllm.ops.batch import Array, Batch
from minllm.ops.protocol import Ops


class LookaheadDrafts:
    """A DraftSource for the tree of TokenTree.lookahead. window, ngram_size, guesses: W, N and G of the paper."""

    reads_history, reads_room, draws = False, False, False

    def __init__(self, ops: Ops, num_slots: int, window: int, ngram_size: int, guesses: int):
        self.ops = ops
        self.state = LookaheadState.make(ops.zeros, num_slots, window, ngram_size, guesses)

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        """See DraftSource."""

    def enter(self, slot: int, token_ids: list[int], drafts: DraftState, machine: Machine) -> None:
        """See DraftSource. The window begins with random tokens of the text, as in the paper; the pool is empty."""
        count = self.state.window_nodes - 1
        guesses = np.random.default_rng(len(token_ids)).choice(token_ids, count).astype(np.int32)
        machine.write(drafts.drafts[slot][:count], guesses)
        machine.write(self.state.added[slot : slot + 1], np.zeros(1, np.int32))

    def compute_keys(self, batch: Batch) -> None:
        """See DraftSource."""

    def propose(self, slots: Array, batch: Batch, state: SlotState, drafts: DraftState, kind: SamplingKind, chosen: Chosen) -> Any:
        """See DraftSource."""
        return self.ops.lookahead(slots, state, drafts, batch.token_ids, chosen.tokens, self.state)
