"""The tiles of out, and which of them a block of the mixed-input GEMM computes."""

from typing import NamedTuple

from numba import cuda, int32, uint32

from minllm.kernels.matmul.output_tiles import make_tile_order
from minllm.kernels.matmul.quantized.mixed_input.tiling import TILES_PER_GROUP, MixedInputTiling


class Tile(NamedTuple):
    """A block's work tile: first row of weight (gated: also of the second half), first row of x, steps of K."""

    row: int
    second_row: int
    token: int
    first_step: int
    steps: int


class Grid(NamedTuple):
    """The tiles of out, `chunks` of x by `columns` of weight; outputs per row of x, steps of K, and what of all this is the block's.

    A block computes the tiles first, first + stride, ..., and of each of them the split-th part of K.
    """

    chunks: int
    columns: int
    outputs: int
    steps: int
    split: int
    first: int
    stride: int


def make_grid_of_block(tiling: MixedInputTiling, gated: bool):
    """grid_of_block(out, steps): the Grid of a block."""
    tokens, columns, splits = tiling.tokens, tiling.columns(gated), tiling.splits

    @cuda.jit(device=True, forceinline=True)
    def grid_of_block(out, steps):
        m, n, block, blocks = uint32(out.shape[0]), uint32(out.shape[1]), uint32(cuda.blockIdx.x), uint32(cuda.gridDim.x)
        # Unsigned numbers are divided in 32 bits.
        chunks, tiles_of_weight = uint32(m + tokens - 1) // uint32(tokens), uint32(n + columns - 1) // uint32(columns)
        split, first, stride = block % uint32(splits), block // uint32(splits), blocks // uint32(splits)
        return Grid(int32(chunks), int32(tiles_of_weight), int32(n), int32(steps), int32(split), int32(first), int32(stride))

    return grid_of_block


def make_tile_at(tiling: MixedInputTiling, gated: bool):
    """tile_at(number, grid): the number-th Tile. The chunks of a tile of weight run side by side, because they share its codes in L2."""
    tokens, splits, columns = tiling.tokens, tiling.splits, tiling.columns(gated)

    @cuda.jit(device=True, forceinline=True)
    def chunks_first(number, chunks, columns):
        column = uint32(number) // uint32(chunks)
        return int32(number - column * chunks), int32(column)

    order = make_tile_order(TILES_PER_GROUP) if tiling.batches else chunks_first  # with one tile per block, chunks are few

    @cuda.jit(device=True, forceinline=True)
    def tile_at(number, grid):
        chunk, column = order(number, grid.chunks, grid.columns)
        row, first_step = int32(column * columns), int32(grid.steps * grid.split // splits)
        steps = int32(grid.steps * (grid.split + 1) // splits - first_step)
        return Tile(row, int32(row + grid.outputs), int32(chunk * tokens), first_step, steps)

    return tile_at
