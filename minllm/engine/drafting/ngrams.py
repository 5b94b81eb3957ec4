"""Drafts from the text: the tokens after the last earlier occurrence of its newest tokens (kernels/speculation/prompt_lookup.py)."""

from typing import Any

from minllm.engine.running.machine import Machine
from minllm.engine.running.speculator import Chosen
from minllm.kernels.sampling.tensors import SamplingKind
from minllm.kernels.slots.state import SlotState
from minllm.kernels.speculation.state import DraftState
from minllm.ops.batch import Array, Batch
from minllm.ops.protocol import Ops


class NgramDrafts:
    """A DraftSource. longest, shortest: the most and the fewest newest tokens that must match."""

    reads_history, reads_room, draws = True, False, False

    def __init__(self, ops: Ops, longest: int, shortest: int):
        self.ops, self.longest, self.shortest = ops, longest, shortest

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        """See DraftSource."""

    def enter(self, slot: int, token_ids: list[int], drafts: DraftState, machine: Machine) -> None:
        """See DraftSource."""

    def compute_keys(self, batch: Batch) -> None:
        """See DraftSource."""

    def propose(self, slots: Array, batch: Batch, state: SlotState, drafts: DraftState, kind: SamplingKind, chosen: Chosen) -> Any:
        """See DraftSource."""
        return self.ops.prompt_lookup(slots, state, drafts, self.longest, self.shortest)
