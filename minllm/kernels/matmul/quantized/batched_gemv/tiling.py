"""How a batched GEMV is divided among warps, blocks and clusters."""

from typing import NamedTuple

from minllm.kernels.arguments import ceil_div
from minllm.kernels.matmul.quantized.row_pairs import PAIRS
from minllm.runtime.kernel import check
from minllm.tiles.warp import WARP

INPUTS = 128  # inputs per step: 64 bytes of codes per row
MOST_GROUPS, MOST_TABLE_BYTES = 4, 35 * 1024  # groups per step; bytes of NF4's tables and the barriers


class BatchedGemvTiling(NamedTuple):
    """Blocks of `warps` warps, of which `splits` share a tile of 16 rows of weight, in clusters of `cluster` blocks.

    The warps that share a tile and the blocks of a cluster divide K. A warp has `unroll` steps in flight. tokens: columns of mma.sync, 8 or
    16. Registers suffice for `blocks` blocks per SM.
    """

    warps: int
    splits: int
    cluster: int
    unroll: int
    tokens: int
    blocks: int = 2

    @property
    def threads(self) -> int:
        """Threads per block."""
        return self.warps * WARP

    @property
    def tiles(self) -> int:
        """Tiles that a cluster computes at a time."""
        return self.warps // self.splits

    @property
    def pairs(self) -> int:
        """Row pairs of these tiles per block of the cluster: each block collects the sums of its own pairs."""
        return self.tiles * PAIRS // self.cluster

    @property
    def parts_of_k(self) -> int:
        """Warps of a cluster that divide the inputs of a tile."""
        return self.splits * self.cluster

    @property
    def sums(self) -> int:
        """Sums that a block collects for its pairs: one per row of a pair, part of K, and token."""
        return self.parts_of_k * self.tokens * 2 * self.pairs

    def chunks(self, steps: int) -> int:
        """Chunks of `unroll` steps per warp, for rows of this many steps."""
        return ceil_div(steps, self.parts_of_k * self.unroll)

    def steps_of_block(self, steps: int) -> int:
        """Steps per block, for rows of this many steps; those of the last block may go past the row."""
        return self.chunks(steps) * self.unroll * self.splits

    def shared_bytes(self, steps: int) -> int:
        """Most shared memory of a block in bytes, for rows of this many steps: x, its sums, those of outputs, tables."""
        return self.steps_of_block(steps) * self.tokens * (2 * INPUTS + 4 * MOST_GROUPS) + 2 * 4 * self.sums + MOST_TABLE_BYTES

    def check(self) -> None:
        """Raise KernelArgumentError unless this tiling can be launched."""
        check(1 <= self.warps <= 16 and self.unroll >= 1, f"{self}: 1 to 16 warps, and at least one step in flight")
        check(self.warps % self.splits == 0, f"{self}: the warps of a block divide evenly into groups of `splits`")
        check(self.cluster in (1, 2, 4, 8), f"{self}: a cluster has 1, 2, 4 or 8 blocks")
        check(self.tiles * PAIRS % self.cluster == 0, f"{self}: {self.tiles * PAIRS} pairs of rows for {self.cluster} blocks")
        check(self.tokens in (8, 16), f"{self}: 8 or 16 tokens")
