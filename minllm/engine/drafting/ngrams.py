"""Drafts from the text itself: what followed the last time that its newest tokens stood together (kernels/speculation/prompt_lookup.py)."""

from typing import Any

from minllm.kernels.slots.state import SlotState
from minllm.kernels.speculation.state import DraftState
from minllm.ops.protocol import Batch


class NgramDrafts:
    """A DraftSource. longest, shortest: the number of newest tokens that have to match."""

    def __init__(self, ops: Any, state: SlotState, longest: int, shortest: int):
        self.ops, self.state, self.longest, self.shortest = ops, state, longest, shortest

    def propose(self, slots: Any, batch: Batch, drafts: DraftState) -> Any:
        """See DraftSource."""
        return self.ops.prompt_lookup(slots, self.state, drafts, self.longest, self.shortest)
