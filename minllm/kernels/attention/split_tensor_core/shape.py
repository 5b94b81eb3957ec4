"""The sizes of a decode step: of its blocks, of their tiles and rings, and of its grid."""

from dataclasses import dataclass

from minllm.kernels.attention.split_tensor_core.merge_parts import pitch_of
from minllm.machine.occupancy import round_up
from minllm.runtime.device import sms_here

RESERVED_BYTES = 1024  # shared memory that CUDA reserves per block
RING_ALIGNMENT = 1024  # the rings follow the states, at a multiple of this
STATIC_BYTES = 48 * 1024  # the most static shared memory per block, which holds the states of its warps
BARRIER_BYTES = 1024  # space for TMA's mbarriers after a warp's ring; keeps the next ring aligned


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


@dataclass(frozen=True)
class BlockSizes:
    """What a block of a kernel over 16-bit caches is compiled for, and the sizes that follow."""

    head_dim: int
    group: int  # query heads per KV head
    shape: SplitShape
    block_size: int = 16  # of the cache
    dtype: str = "bfloat16"

    @property
    def head_tiles(self):
        """Blocks that share a KV head's query heads."""
        return head_tiles_of(self.group, self.head_dim)[0]

    @property
    def heads(self):
        """Query heads per block."""
        return head_tiles_of(self.group, self.head_dim)[1]

    @property
    def columns(self):
        """Tiles of 8 query heads, the columns of mma."""
        return -(-self.heads // 8)

    @property
    def steps(self):
        """Steps of mma along head_dim, and tiles of 16 rows of the output."""
        return -(-self.head_dim // 16)

    @property
    def row_bytes(self):
        """Bytes from one row of a tile to the next, of rows that cp.async copies."""
        return 32 * self.steps + 16

    @property
    def stage_bytes(self):
        """Bytes per stage, which holds rows of K, then the same rows of V."""
        return self.shape.keys * (4 * self.head_dim if self.shape.tensor_copies else 2 * self.row_bytes)

    @property
    def ring_bytes(self):
        """Bytes of a warp's ring, with its mbarriers."""
        return self.shape.stages * self.stage_bytes + BARRIER_BYTES * self.shape.tensor_copies


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
