"""How large a decode step's blocks and grid are."""

from dataclasses import dataclass

from minllm.kernels.attention.split_tensor_core.merge_parts import pitch_of
from minllm.machine.occupancy import round_up
from minllm.runtime.device import sms_here

RESERVED_BYTES = 1024  # shared memory that CUDA reserves per block
RING_ALIGNMENT = 1024  # the rings lie behind the states, at a multiple of this
STATIC_BYTES = 48 * 1024  # static shared memory that a block can have: the states of its warps


@dataclass(frozen=True)
class SplitShape:
    """How a block works."""

    warps: int
    keys: int  # keys per warp's tile, a multiple of 16
    stages: int  # stages per warp's ring, 2 to 4
    blocks: int  # per SM
    tensor_copies: bool = False  # TMA fills the rings, not cp.async
    turns: int = 1  # heads whose warps' states a block keeps: with two, one is written while the other is read

    @property
    def tile(self):
        """Keys that a block takes at one time."""
        return self.warps * self.keys


def head_tiles_of(group, head_dim):
    """(blocks that share a KV head's query heads, heads of each): at most 16, 8 for large heads, whose accumulators fill the registers."""
    tiles = -(-group // (16 if head_dim <= 96 else 8))
    return tiles, -(-group // tiles)


def line_heads_of(sizes):
    """Heads of the line, over all sequences."""
    return sizes.sequences * sizes.kv_heads * head_tiles_of(sizes.group, sizes.head_dim)[0]


def first_that_fits(candidates, head_dim, heads, ring_bytes_of, shared_bytes):
    """The first SplitShape of which `blocks` blocks find room on an SM whose blocks may have `shared_bytes`, else the last."""
    fitting = (shape for shape in candidates if fits(shape, head_dim, heads, ring_bytes_of(shape), shared_bytes))
    return next(fitting, candidates[-1])


def fits(shape, head_dim, heads, ring_bytes, shared_bytes):
    """Whether shape.blocks blocks of `heads` query heads with rings of `ring_bytes` per warp find room on an SM."""
    state_bytes = 4 * shape.turns * shape.warps * heads * (pitch_of(head_dim) + 2) + 16 * shape.turns
    block_bytes = shape.warps * ring_bytes + round_up(state_bytes, RING_ALIGNMENT)
    return state_bytes <= STATIC_BYTES and shape.blocks * (block_bytes + RESERVED_BYTES) <= shared_bytes + RESERVED_BYTES


def grid_of(sizes, splits, sm_count, shape):
    """Blocks of the grid: known on the host without the lengths of contexts."""
    if splits:
        return line_heads_of(sizes) * splits
    return min(shape.blocks * (sm_count or sms_here()), line_heads_of(sizes) * -(-sizes.max_context_len // shape.tile))
