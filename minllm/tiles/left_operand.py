"""Loads the left operand of wgmma into registers, by ldmatrix from a tile in shared memory."""

from numba import cuda, uint32

from minllm import ptx
from minllm.tiles.shared import SharedTile
from minllm.tiles.wgmma import DEPTH


def make_load_left(tile: SharedTile):
    """load_left(words, address, first_row, lane): device function that loads rows of a tile as the left operand of wgmma.

    A warp loads its own 16 rows, from first_row on. words: receives 4 uint32 per 16 columns; address: shared address of the tile.
    """
    swizzle, panel_columns, panel_bytes, steps = tile.swizzle, tile.panel_columns, tile.panel_bytes, -(-tile.columns // DEPTH)

    @cuda.jit(device=True)
    def load_left(words, address, first_row, lane):
        for step in range(steps):
            column = step * DEPTH
            offset = uint32((first_row + lane % 16) * swizzle + column % panel_columns * 2 + lane // 16 * 16)
            offset ^= uint32((offset >> uint32(7) & uint32(swizzle // 16 - 1)) << uint32(4))  # the swizzle permutes chunks of 16 bytes
            ptx.ldmatrix_x4(words, 4 * step, uint32(address + column // panel_columns * panel_bytes + offset))

    return load_left
