"""How the flat GEMM for Hopper is divided among blocks: rows of weight, stages, clusters; and the choice by shape."""

from typing import NamedTuple

from minllm.kernels.matmul.flat.mma_tiling import FlatTiling
from minllm.kernels.matmul.flat.output import PADDING
from minllm.runtime.device import SHARED_BYTES_PER_BLOCK
from minllm.runtime.kernel import check
from minllm.tiles.warp import WARP
from minllm.tiles.warpgroup import ROWS, THREADS

TILE_K, LINE_BYTES = 64, 128  # elements of a step, and their bytes: the swizzle's span


class FlatWgmmaTiling(NamedTuple):
    """`warpgroups` of 64 weight rows each per block, `stages` steps of K in flight; a cluster is `sharers` x `splits` blocks.

    splits: blocks of a cluster that divide K (split-K). sharers: blocks with the same part of K and different rows of weight, which
    share tiles of x.
    """

    warpgroups: int
    stages: int
    splits: int = 1
    sharers: int = 1

    @property
    def rows(self) -> int:
        """Rows of weight of a block."""
        return self.warpgroups * ROWS

    @property
    def threads(self) -> int:
        """Threads per block: the consumers and the producer's warp."""
        return self.warpgroups * THREADS + WARP

    def stage_bytes(self, tokens: int) -> int:
        """Bytes of a step's tiles."""
        return (self.rows + tokens) * LINE_BYTES

    def shared_bytes(self, tokens: int) -> int:
        """Bytes of the ring or of the sums that replace it, two barriers per stage, and room to begin at a multiple of 1024."""
        return max(self.stages * self.stage_bytes(tokens), self.sums_bytes(tokens)) + 16 * self.stages + 1024

    def sums_bytes(self, tokens: int) -> int:
        """Bytes of a block's float32 sums."""
        return tokens * (self.rows + PADDING) * 4

    def check(self, tokens: int) -> None:
        """Raise KernelArgumentError unless it can be launched for `tokens` padded rows of x."""
        shared_bytes = self.shared_bytes(tokens)
        check(self.warpgroups in (1, 2, 4) and self.splits in (1, 2, 3, 4, 8), f"{self}: 1, 2 or 4 warpgroups, and 1, 2, 3, 4 or 8 splits")
        room = f"{self}, {tokens} rows: {shared_bytes} bytes of shared memory; a block has {SHARED_BYTES_PER_BLOCK}"
        check(self.sharers in (1, 2, 4) and tokens % (8 * self.sharers) == 0, f"{self}: {tokens} tokens are not shared in whole eights")
        check(self.stages >= 2 and shared_bytes <= SHARED_BYTES_PER_BLOCK, room)


def deepest(warpgroups: int, tokens: int, splits: int, blocks: int = 1) -> FlatWgmmaTiling:
    """The tiling with as many stages as shared memory allows for `blocks` blocks per SM, but no more than 16."""
    bytes_of_a_block = SHARED_BYTES_PER_BLOCK // blocks - 2048  # alignment, barriers, and what CUDA reserves
    stage_bytes = FlatWgmmaTiling(warpgroups, 1).stage_bytes(tokens)
    return FlatWgmmaTiling(warpgroups, min(16, bytes_of_a_block // stage_bytes), splits)


def choose_tiling(tokens: int, n: int, k: int, gated: bool) -> FlatWgmmaTiling | FlatTiling:
    """The fastest of some thirty on an H200, or within 2 % of it, for `tokens` padded rows of x and n columns of out.

    If weight has more rows than fill the SMs once, and tokens are few, cp.async is faster than TMA, unless rows are short. If it has few,
    one block per SM with all of its shared memory in flight is best, and blocks divide K if they would be fewer than a hundred: 2048 rows
    in three parts, because 39 clusters of three such blocks run at a time, but only 30 of four, and there are 32. If rows are short too,
    blocks take less shared memory, so that they fit beside those of the preceding kernel and load their weights while it runs.
    """
    rows = 2 * n if gated else n
    if rows > 8192:
        if tokens <= 8 or tokens <= 16 and k > 2048:
            return FlatTiling(32, 4, 4, 9)
        if tokens <= 16:
            return deepest(1, tokens, 1, blocks=2)
        if tokens <= 32:
            return deepest(2, 32, 1)._replace(sharers=4)
        return deepest(1, tokens, 1, blocks=2) if tokens <= 64 else deepest(2, tokens, 1, blocks=2 if tokens <= 128 else 1)
    if rows <= 2048 and k <= 2048 and tokens <= 64:
        tiling = deepest(1, tokens, 4, blocks=2)
        return tiling._replace(stages=min(tiling.stages, 8))
    splits = 2 if rows > 2048 else 3
    if tokens <= 32:
        return deepest(2 if rows > 4096 else 1, tokens, splits)
    return deepest(1, tokens, 1 if rows > 4096 else splits)
