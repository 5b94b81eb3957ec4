"""How the flat GEMM for every GPU is divided among blocks: rows of weight, warps, stages; and the choice by shape."""

from typing import NamedTuple

from minllm.kernels.matmul.flat.output import PADDING
from minllm.runtime.kernel import check
from minllm.tiles.warp import WARP

TILE_K = 64  # columns of a tile: four steps of mma.sync
MOST_TOKENS = 128
MOST_STAGES = 9


class FlatTiling(NamedTuple):
    """`rows` of weight per block, `warps` in `splits` groups, each with its part of K, and `stages` tiles in the ring."""

    rows: int
    warps: int
    splits: int
    stages: int

    @property
    def threads(self) -> int:
        """Threads per block."""
        return self.warps * WARP

    def stage_words(self, tokens: int) -> int:
        """32-bit words of a weight tile plus an x tile."""
        return (self.rows + tokens) * TILE_K // 2

    def shared_bytes(self, tokens: int) -> int:
        """Bytes of the ring, or of the sums that later replace it."""
        return 4 * max(self.stages * self.stage_words(tokens), self.splits * tokens * (self.rows + PADDING))

    def check(self, tokens: int) -> None:
        """Raise KernelArgumentError unless warps, rows and copies divide evenly."""
        groups = self.splits in (1, 2, 4) and self.warps % self.splits == 0
        even = groups and self.rows % (16 * (self.warps // self.splits)) == 0
        check(even, f"{self}: splits is 1, 2 or 4, divides the warps, and each warp of a group owns a multiple of 16 rows")
        whole = self.rows * TILE_K // 8 % self.threads == 0
        check(whole, f"{self}: {self.threads} threads do not divide a tile's {self.rows * TILE_K // 8} 16-byte pieces evenly")
        check(2 <= self.stages <= MOST_STAGES, f"{self}: a ring has 2 to {MOST_STAGES} stages")
        check(tokens % 8 == 0 and tokens <= MOST_TOKENS, f"{tokens} tokens a block: a multiple of 8 up to {MOST_TOKENS}")


def choose_tiling(tokens: int, n: int, k: int, gated: bool) -> FlatTiling:
    """The fastest of a dozen tilings for `tokens` padded rows of x and n columns of out; the ring is at most 96 KB, which all GPUs have."""
    if tokens <= 32:
        return FlatTiling(64, 4, 4, 8) if tokens > 16 and n >= 16384 else FlatTiling(32, 4, 4, 9)
    return FlatTiling(64, 4, 2, 6) if tokens <= 64 else FlatTiling(64, 4, 1, 4)
