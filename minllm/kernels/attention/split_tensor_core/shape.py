"""The block and grid sizes of a decode step."""

from dataclasses import dataclass

from minllm.kernels.attention.split_tensor_core.merge_parts import pitch_of
from minllm.machine.occupancy import round_up
from minllm.runtime.device import sms_here

RESERVED_BYTES = 1024  # shared memory that CUDA reserves per block
RING_ALIGNMENT = 1024  # the rings follow the states, at a multiple of this
STATIC_BYTES = 48 * 1024  # the most static shared memory per block, which holds the states of its warps


@dataclass(frozen=True)
class SplitShape:
    """The size of a block, of its tiles and of its rings."""

    warps: int
    keys: int  # keys per warp's tile, a multiple of 16
    stages: int  # stages per warp's ring, 2 to 4
    blocks: int  # per SM
    tensor_copies: bool = False  # TMA fills the rings, not cp.async
    turns: int = 1  # buffers for the warps' states: with two, one is written while the other is read

    @property
    def tile(self):
        """Keys per tile of a block."""
        return self.warps * self.keys


def head_tiles_of(group, head_dim):
    """(blocks that share a KV head's query heads, heads of each): at most 16 heads, 8 if head_dim is large, to limit registers."""
    tiles = -(-group // (16 if head_dim <= 96 else 8))
    return tiles, -(-group // tiles)


def line_heads_of(sizes):
    """Heads of the line (plan.py), over all sequences."""
    return sizes.sequences * sizes.kv_heads * head_tiles_of(sizes.group, sizes.head_dim)[0]


def first_that_fits(candidates, head_dim, heads, ring_bytes_of, shared_bytes):
    """The first SplitShape of which `blocks` blocks fit on an SM with `shared_bytes` of shared memory per block, else the last."""
    fitting = (shape for shape in candidates if fits(shape, head_dim, heads, ring_bytes_of(shape), shared_bytes))
    return next(fitting, candidates[-1])


def fits(shape, head_dim, heads, ring_bytes, shared_bytes):
    """Whether shape.blocks blocks of `heads` query heads, with rings of `ring_bytes` per warp, fit on an SM."""
    state_bytes = 4 * shape.turns * shape.warps * heads * (pitch_of(head_dim) + 2) + 16 * shape.turns
    block_bytes = shape.warps * ring_bytes + round_up(state_bytes, RING_ALIGNMENT)
    return state_bytes <= STATIC_BYTES and shape.blocks * (block_bytes + RESERVED_BYTES) <= shared_bytes + RESERVED_BYTES


def grid_of(sizes, splits, sm_count, shape):
    """Blocks of the grid, computed on the host without the lengths of contexts."""
    if splits:
        return line_heads_of(sizes) * splits
    return min(shape.blocks * (sm_count or sms_here()), line_heads_of(sizes) * -(-sizes.max_context_len // shape.tile))
