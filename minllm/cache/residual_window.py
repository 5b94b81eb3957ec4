"""Residual windows: unquantised copies of a quantised cache's newest tokens.

They consist of rings in every layer, and scratch memory for prompts. Every running sequence has a ring of blocks of G = TOKEN_GROUP tokens
in each layer: R / G + 1 blocks for a residual window of R tokens, because the window begins with a whole group and its newest group is
incomplete. The token at position p is in block p // G modulo the number of blocks; overwritten tokens have left the window.

A prefill step has more new tokens than a ring holds, and its first query still needs the window before it. So it uses scratch memory, which
all layers share: the ring's blocks are copied there, the new tokens are appended, and the window of the next step is copied back.
kernels/attention/residual_window/reference.py defines the window.
"""

from dataclasses import dataclass

from minllm.kernels.attention.residual_window.reference import ring_blocks
from minllm.kernels.quantization.groups import TOKEN_GROUP


@dataclass(frozen=True)
class WindowRoom:
    """The number of rings, one per sequence and one for scoring, and of scratch blocks."""

    rings: int
    scratch_blocks: int

    @property
    def scoring_ring(self) -> int:
        """The ring for scoring a text, which may happen while others are generated."""
        return self.rings - 1

    def bytes(self, shape) -> int:
        """Bytes of the rings of every layer and of the scratch memory, for a cache of this CacheShape."""
        block = 2 * TOKEN_GROUP * shape.kv_heads * shape.head_dim * shape.dtype.itemsize  # keys and values of one layer
        return block * (shape.num_layers * self.rings * ring_blocks(shape.residual_window) + self.scratch_blocks)


def window_room(residual_window: int, max_num_seqs: int, max_num_batched_tokens: int) -> WindowRoom | None:
    """The WindowRoom for windows of `residual_window` tokens; None without a window.

    In a step only the first sequence may have begun earlier and need its window; each sequence may leave a block partly filled.
    """
    if not residual_window:
        return None
    sequences = min(max_num_seqs, max_num_batched_tokens)
    tokens = max_num_batched_tokens + residual_window + (TOKEN_GROUP - 1) * (sequences + 1)
    return WindowRoom(max_num_seqs + 1, tokens // TOKEN_GROUP)
