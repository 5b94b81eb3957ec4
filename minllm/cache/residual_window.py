"""Where the newest tokens are kept as they are while older ones are codes: rings, and the scratch memory of a prompt's step.

Every sequence that runs has a ring of blocks of G = TOKEN_GROUP tokens in each layer: with a residual window of R tokens, R / G + 1 blocks,
because the window begins with a whole group and its newest group is under way. The token at position p lies in block p // G modulo their
number; what is overwritten has left the window.

A step of a prompt has more new tokens than a ring holds, and its first query still looks back a window. So it works in scratch memory, one
for all layers: the ring's blocks are copied there, the new tokens join them, and what the next step's window will need is copied back.
The rule itself is kernels/attention/residual_window/reference.py's.
"""

from dataclasses import dataclass

from minllm.kernels.attention.residual_window.reference import ring_blocks
from minllm.kernels.quantization.formats import TOKEN_GROUP


@dataclass(frozen=True)
class WindowRoom:
    """How many sequences have a ring, and the blocks of scratch memory."""

    rings: int
    scratch_blocks: int

    @property
    def scoring_ring(self) -> int:
        """The ring of texts that are scored, while others may be generated."""
        return self.rings - 1

    def bytes(self, shape) -> int:
        """Bytes of both for a cache of this CacheShape: rings in every layer, scratch memory once."""
        block = 2 * TOKEN_GROUP * shape.kv_heads * shape.head_dim * shape.dtype.itemsize  # keys and values of a layer
        return block * (shape.num_layers * self.rings * ring_blocks(shape.residual_window) + self.scratch_blocks)


def window_room(residual_window: int, max_num_seqs: int, max_num_batched_tokens: int) -> WindowRoom | None:
    """The room that windows of so many tokens need; None without a window.

    Of the sequences in a step only the first has begun in an earlier one and brings a window; each may leave a block partly filled.
    """
    if not residual_window:
        return None
    sequences = min(max_num_seqs, max_num_batched_tokens)
    tokens = max_num_batched_tokens + residual_window + (TOKEN_GROUP - 1) * (sequences + 1)
    return WindowRoom(max_num_seqs + 1, tokens // TOKEN_GROUP)
