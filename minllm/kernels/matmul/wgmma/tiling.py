"""How the wgmma GEMM is divided among blocks: tile shapes, what they cost, and the choice by shape."""

import functools
from typing import NamedTuple

from minllm.kernels.arguments import ceil_div
from minllm.runtime.device import SHARED_BYTES_PER_BLOCK
from minllm.runtime.kernel import check
from minllm.tiles.shared import ALIGNMENT, SharedTile
from minllm.tiles.warpgroup import ROWS, THREADS

TILE_K = 64  # 128 bytes: the swizzle's span
FEW_ROWS = 256  # rows of x up to which reading weight takes as long as multiplying: then blocks may start early


class WgmmaTiling(NamedTuple):
    """How a block divides its work: `consumers` warpgroups own 64 x tile_n outputs each.

    stages: steps of tiles in flight. cluster: blocks that share tiles of weight. chunks: chunks of 64 x chunk_columns outputs for which a
    consumer has room in shared memory. group: rows of tiles per group of the tile order (output_tiles.py). early: blocks start in the last
    microseconds of the preceding kernel and load weights, which that kernel must not write.
    """

    consumers: int
    tile_n: int
    stages: int
    cluster: int = 1
    chunks: int = 1
    group: int = 8
    early: bool = False

    @property
    def tile_m(self) -> int:
        """Rows of out that a block computes at a time."""
        return self.consumers * ROWS

    @property
    def x_tile(self) -> SharedTile:
        """A step's tile of x."""
        return SharedTile(self.tile_m, TILE_K)

    @property
    def weight_tile(self) -> SharedTile:
        """A step's tile of weight, after that of x in shared memory."""
        return SharedTile(self.tile_n, TILE_K)

    @property
    def threads(self) -> int:
        """Threads of a block: the producer's warpgroup and the consumers."""
        return (1 + self.consumers) * THREADS

    @property
    def stage_bytes(self) -> int:
        """Bytes of a tile of x and one of weight."""
        return self.x_tile.bytes + self.weight_tile.bytes

    @property
    def chunk_columns(self) -> int:
        """Columns of outputs that TMA stores at a time: 128 bytes of a row, or fewer that divide the tile and half of it."""
        return {96: 32, 224: 16}.get(self.tile_n, 64)

    @property
    def staging_bytes(self) -> int:
        """Bytes of shared memory through which TMA stores a consumer's outputs."""
        return self.chunks * ROWS * self.chunk_columns * 2

    @property
    def shared_bytes(self) -> int:
        """Bytes of tiles, outputs, two barriers per stage, and room to begin at a multiple of ALIGNMENT."""
        return self.stages * (self.stage_bytes + 16) + self.consumers * self.staging_bytes + ALIGNMENT

    def columns(self, gated: bool) -> int:
        """Columns of out that a block computes at a time."""
        return self.tile_n // 2 if gated else self.tile_n

    def check(self, gated: bool) -> None:
        """Raise KernelArgumentError unless the tiling can be launched."""
        whole = self.tile_n in (64, 96, 128, 192, 224, 256) and self.columns(gated) % (self.chunk_columns * self.chunks) == 0
        widths = "tile_n is 64, 96, 128, 192, 224 or 256"
        allowed = f"{widths}, and its outputs are a multiple of `chunks` chunks of {self.chunk_columns} columns"
        check(whole, f"{self}: {allowed}")
        check(self.consumers in (1, 2) and self.cluster in (1, 2), f"{self}: there are 1 or 2 consumers, and 1 or 2 blocks in a cluster")
        check(self.stages >= 2, f"{self}: one stage is filled while another is multiplied, so there are at least 2")
        room = f"{self}: {self.shared_bytes} bytes of shared memory; a block has {SHARED_BYTES_PER_BLOCK}"
        check(self.shared_bytes <= SHARED_BYTES_PER_BLOCK, room)


GATED_TILES = (128, 224, 256)  # values of tile_n of which each half, gate or up, is whole chunks

TILINGS = (
    WgmmaTiling(2, 256, 4, 2, 2),
    WgmmaTiling(2, 256, 4, 2, 2, early=True),
    WgmmaTiling(2, 224, 4, 2, 7, early=True),
    WgmmaTiling(2, 256, 4, 1, 2),
    WgmmaTiling(2, 192, 4, 1, 3),
    WgmmaTiling(2, 128, 6, 1, 1),
    WgmmaTiling(1, 128, 6, 1, 1),
    WgmmaTiling(1, 96, 10, 2, 3, early=True),
    WgmmaTiling(2, 96, 7, 2, 3, early=True),
    WgmmaTiling(2, 64, 8, 2, 1, early=True),
)


@functools.lru_cache(1024)
def choose_tiling(m: int, n: int, gated: bool, sms: int, tilings: tuple[WgmmaTiling, ...] = TILINGS) -> WgmmaTiling:
    """The tiling of the shortest estimated time; of equals an `early` one, then the first in `tilings`.

    Each SM computes one tile after another. A step of a tile takes the tensor cores 128 cycles per 64 x 64 outputs, or TMA one cycle per
    64 bytes, whichever is longer; a tile's prologue and epilogue count as half of 64 x 64 outputs.
    """

    def time(tiling):
        clusters = ceil_div(m, tiling.tile_m * tiling.cluster) * ceil_div(n, tiling.columns(gated))
        products, copies = 128 * tiling.consumers * tiling.tile_n // ROWS, tiling.stage_bytes // 64
        return ceil_div(clusters, sms // tiling.cluster) * (max(products, copies) + 64)

    fitting = (tiling for tiling in tilings if (not gated or tiling.tile_n in GATED_TILES) and (m <= FEW_ROWS or not tiling.early))
    return min(fitting, key=lambda tiling: (time(tiling), not tiling.early))
