"""The state of each slot for speculation, besides its SlotState: the drafts to verify next, and the tokens so far.

It takes 4 S (K + W) bytes for S slots, K drafts and sequences of up to W tokens: 134 MB for 256 slots of 131,072 tokens. For drafts that
are drawn it takes 4 S K V more, with a vocabulary of V tokens.
"""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from minllm.kernels.speculation.token_tree import TreeArrays, check
from minllm.runtime.array_protocol import Array


@dataclass
class DraftState:
    """The drafts and token histories of S slots."""

    drafts: Array  # int32 [S, K] tokens that may follow the newest one; 0 if the source found none
    token_history: Array  # int32 [S, W] the sequence's tokens, including the newest
    log_q: Any = None  # float32 [S, K, vocab] log-probabilities that the drafts were drawn from; None if they are not drawn
    tree: TreeArrays | None = None  # draft i of a slot is node i + 1; None: each draft follows the one before it

    @property
    def nodes(self) -> TreeArrays:
        """The tree of the drafts. Raises KernelArgumentError for drafts that are a list."""
        check(self.tree is not None, "these drafts are a list, and the operation is for a tree of drafts")
        return cast(TreeArrays, self.tree)

    @classmethod
    def make(cls, zeros, num_slots: int, num_drafts: int, width: int, vocab: int = 0, tree: TreeArrays | None = None) -> "DraftState":
        """Allocate with `zeros(shape, dtype)`. width: the most tokens of a sequence. vocab: size for drafts that are drawn, else 0."""
        log_q = zeros((num_slots, num_drafts, vocab), np.float32) if vocab else None
        return cls(zeros((num_slots, num_drafts), np.int32), zeros((num_slots, width), np.int32), log_q, tree)
