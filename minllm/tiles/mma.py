"""Matmuls of a warp on tensor cores: mma.sync m16n8k16 on tiles in padded shared rows (cp_async.py), read by ldmatrix.

The left matrix has 16 * row_tiles rows per warp, and stays in registers if it fits, as A operands: a lane holds four words of each 16 x 16
tile. The right matrix is in shared memory; ldmatrix reads it as it is, or transposes it. Accumulators have the layout of rows.py; packed to
16 bits, they are A operands of the next matmul.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

from numba import cuda, float32, uint32

from minllm.ptx import ldmatrix_x4, ldmatrix_x4_trans, mma_m16n8k16_bf16, mma_m16n8k16_f16, shared_address
from minllm.tiles.cp_async import row_words_of


class WarpMatmuls(NamedTuple):
    """Device functions that all lanes of a warp call together. row: the warp's first row of the left matrix, which begins at word 0."""

    load_left: Callable  # load_left(left, shared, row, lane): load the left matrix into registers, if it stays there
    multiply_transposed: Callable  # multiply_transposed(acc, left, shared, row, lane): acc = L R^T, R [keys, depth] from word right_at on
    multiply: Callable  # multiply(acc, weights, shared, lane): acc += W V, W an accumulator [rows, keys], V [keys, depth] at word values_at


@functools.cache
def make_warp_matmuls(dtype, depth, keys, row_tiles, right_at, values_at, left_in_registers, weight_rows):
    """The WarpMatmuls for 16-bit `dtype`; depth is a multiple of 16; weight_rows: the Rows of W, which pack it."""
    mma = mma_m16n8k16_bf16 if dtype == "bfloat16" else mma_m16n8k16_f16
    row_words, steps = row_words_of(depth), depth // 16
    depth_blocks, key_blocks, key_steps = depth // 8, keys // 8, keys // 16
    acc_count, weight_words = keys // 2 * row_tiles, 4 * row_tiles

    @cuda.jit(device=True)
    def load_step(left, at, shared, row, row_tile, step, lane):
        """Load the A operand of one step: lane % 16 selects the row, lane // 16 the left or right 8 columns."""
        source = row + 16 * row_tile + lane % 16
        ldmatrix_x4(left, at, shared_address(shared, source * row_words + step * 8 + lane // 16 * 4))

    @cuda.jit(device=True)
    def load_left(left, shared, row, lane):
        if left_in_registers:
            for row_tile in range(row_tiles):
                for step in range(steps):
                    load_step(left, 4 * (row_tile * steps + step), shared, row, row_tile, step, lane)

    @cuda.jit(device=True)
    def multiply_transposed(acc, left, shared, row, lane):
        right = cuda.local.array(4, uint32)
        for i in range(acc_count):
            acc[i] = float32(0.0)
        right_row = lane % 8 + lane // 16 * 8  # two blocks of 8 keys, each with its left and right 8 columns
        source = shared_address(shared, right_at + right_row * row_words + lane // 8 % 2 * 4)
        for step in range(steps):
            if not left_in_registers:
                for row_tile in range(row_tiles):
                    load_step(left, 4 * row_tile, shared, row, row_tile, step, lane)
            for key_step in range(key_steps):
                ldmatrix_x4(right, 0, uint32(source + 4 * (16 * key_step * row_words + 8 * step)))
                for row_tile in range(row_tiles):
                    a = 4 * (row_tile * steps + step) if left_in_registers else 4 * row_tile
                    c = 4 * (row_tile * key_blocks + 2 * key_step)
                    mma(acc, c, left, a, right, 0)
                    mma(acc, c + 4, left, a, right, 2)

    @cuda.jit(device=True)
    def multiply(acc, weights, shared, lane):
        source = shared_address(shared, values_at + lane % 16 * row_words + lane // 16 * 4)
        left, right = cuda.local.array(weight_words, uint32), cuda.local.array(4, uint32)
        for key_step in range(key_steps):
            for row_tile in range(row_tiles):
                weight_rows.pack(weights, row_tile, key_step, left, 4 * row_tile)
            for step in range(steps):
                ldmatrix_x4_trans(right, 0, uint32(source + 4 * (16 * key_step * row_words + 8 * step)))
                for row_tile in range(row_tiles):
                    c = 4 * (row_tile * depth_blocks + 2 * step)
                    mma(acc, c, left, 4 * row_tile, right, 0)
                    mma(acc, c + 4, left, 4 * row_tile, right, 2)

    return WarpMatmuls(load_left, multiply_transposed, multiply)
