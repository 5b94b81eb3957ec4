"""How products of 4-bit codes by TMA are divided among blocks and warps: int4_tma.py, nf4_tma.py.

One thread loads steps of STEP inputs: [rows, 128 bytes] of codes and X_PANELS panels of x (flat/mainloop.py). A warp takes every `warps`-th
step of a block, for all of its rows, and leaves its sums in shared memory, where those of all warps and of a cluster's blocks are added.
"""

from typing import NamedTuple

from numba import cuda, float32, int32, uint32

from minllm import ptx
from minllm.kernels.matmul.flat.output import PADDING
from minllm.kernels.matmul.flat.wgmma_tiling import LINE_BYTES, SHARED_BYTES_OF_A_BLOCK
from minllm.runtime.kernel import check
from minllm.tiles.warp import WARP

X_PANELS, STEP = 4, 256  # lines of x per line of codes; inputs of a step
CHUNK_BYTES = 16  # the codes of 32 inputs of a row
TILE_ROWS = 16  # rows of weight of an mma.sync


class TmaTiling(NamedTuple):
    """A block has `rows` of weight, `warps` and `stages` steps in flight; `splits` blocks of a cluster split K.

    stages is a multiple of warps, so that a warp always meets the stages that it released itself: the parity for which a wait asks does not
    tell a stage that is full from one that has not been full for the step before, which another warp might still wait for.
    """

    rows: int
    warps: int
    stages: int
    splits: int = 1

    sharers = 1  # of a tile of x: blocks share none

    @property
    def threads(self) -> int:
        """The consumers, and the producer's warp."""
        return (self.warps + 1) * WARP

    def blocks(self, tokens: int) -> int:
        """Blocks per SM for which registers suffice: 128 of a thread for 64 rows and 8 tokens, 200 for 16."""
        return max(1, (16 if self.rows * tokens <= 512 else 10) // (self.warps + 1))

    def stage_bytes(self, tokens: int, x_panels: int = X_PANELS) -> int:
        """Bytes of a step's codes and of its x."""
        return (self.rows + tokens * x_panels) * LINE_BYTES

    def sums_bytes(self, tokens: int) -> int:
        """Bytes of the float32 sums of all warps."""
        return self.warps * tokens * (self.rows + PADDING) * 4

    def shared_bytes(self, tokens: int, x_panels: int = X_PANELS) -> int:
        """The ring, or the sums that later lie in its place, two barriers per stage, and room to begin at a multiple of 1024."""
        return max(self.stages * self.stage_bytes(tokens, x_panels), self.sums_bytes(tokens)) + 16 * self.stages + 1024

    def check(self, tokens: int, x_panels: int = X_PANELS) -> None:
        """Raise KernelArgumentError unless it can be launched for `tokens` padded rows of x."""
        check(self.rows in (32, 64, 128) and self.splits in (1, 2, 3, 4, 8), f"{self}: 32, 64 or 128 rows, and 1, 2, 3, 4 or 8 splits")
        check(1 <= self.warps <= 16, f"{self}: 1 to 16 warps")
        shared_bytes = self.shared_bytes(tokens, x_panels)
        room = f"{self}, {tokens} rows: {shared_bytes} bytes of shared memory; a block has {SHARED_BYTES_OF_A_BLOCK}"
        check(shared_bytes <= SHARED_BYTES_OF_A_BLOCK, room)
        check(self.stages >= 2 and self.stages % self.warps == 0, f"{self}: at least 2 stages, a multiple of the warps")


def make_added(splits: int, warps: int, words: int):
    """The device function that adds four neighbouring sums over warps, `words` apart, and over the blocks of a cluster."""

    @cuda.jit(device=True, forceinline=True)
    def added(sums, start, place):
        address = ptx.shared_address(sums, start + place)
        a, b, c, d = float32(0.0), float32(0.0), float32(0.0), float32(0.0)
        for split in range(splits):
            for warp in range(warps):
                if splits == 1:
                    e, f, g, h = ptx.load_float32(sums, start + place + warp * words)
                else:
                    e, f, g, h = ptx.ld_shared_cluster_v4_f32(ptx.mapa(address + 4 * warp * words, split))
                a, b, c, d = a + e, b + f, c + g, d + h
        return a, b, c, d

    return added


def make_row_of(rows: int, halves: bool):
    """The device function that gives the row of weight at a place of a block's tile, or any beyond the edge; halves: gate and up."""

    @cuda.jit(device=True, forceinline=True)
    def row_of(row, share, last):
        if halves and row >= rows // 2:
            return uint32(min(int32(share.second_row + row - rows // 2), last))
        return uint32(min(int32(share.row + row), last))

    return row_of


def make_keep_sums(tokens: int, rows: int):
    """The device function that stores a lane's sums in shared memory."""
    blocks, tiles, stride = tokens // 8, rows // TILE_ROWS, rows + PADDING

    @cuda.jit(device=True, forceinline=True)
    def keep_sums(sums, memory, start, lane):
        """memory[start + token * stride + row] = sums; columns 2 t and 2 t + 1 are tokens t and t + 4."""
        place = uint32(start + (lane & 3) * stride + (lane >> 2))
        for tile in range(tiles):
            for block in range(blocks):
                at, here = 4 * (tile * blocks + block), uint32(place + 8 * block * stride + TILE_ROWS * tile)
                memory[here], memory[here + 4 * stride] = sums[at], sums[at + 1]
                memory[here + 8], memory[here + 4 * stride + 8] = sums[at + 2], sums[at + 3]

    return keep_sums
