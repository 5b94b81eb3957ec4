"""The sizes of a block of the split tensor-core kernels, computed once; shape.py chooses them."""

from dataclasses import dataclass

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


def head_tiles_of(group, head_dim):
    """(blocks that share a KV head's query heads, heads of each): at most 16 heads, 8 if head_dim is large, to limit registers."""
    tiles = -(-group // (16 if head_dim <= 96 else 8))
    return tiles, -(-group // tiles)


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
