"""A tile of keys for a few query heads: two matmuls, with softmax between them.

Both matmuls put the short side, the query heads, on the 8 columns of mma, and keys or head_dim on its 16 rows:

    S^T [keys, heads] = K q^T          O^T [head_dim, heads] += V^T P^T

K in shared memory is the A operand as it is, V is transposed by ldmatrix. The accumulator P^T of the first matmul has keys along rows, but
the B operand of the second needs keys along columns: movmatrix transposes each 8x8 tile. So a group of up to 8 heads fills the columns of
mma, whereas queries as rows would fill half of its 16 rows, and the output takes half of the registers.

A lane holds columns, that is heads, 2 * (lane % 4) and the next; its maxima and sums are those of these heads. `heads` is a multiple of 8.
Scores are folded unscaled, and their difference to the maximum is scaled, for the reason given in tiles/rows.py.
"""

import functools
from typing import NamedTuple

from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.attention.common.online_softmax import MINUS_INFINITY, finite_or_zero
from minllm.kernels.attention.split_tensor_core.tile_loop import Products, Softmax
from minllm.ptx import (
    ex2,
    ldmatrix_x4,
    ldmatrix_x4_trans,
    load_32,
    mma_m16n8k16_bf16,
    mma_m16n8k16_f16,
    movmatrix_trans,
    pack_bf16x2,
    pack_f16x2,
)
from minllm.runtime.array_protocol import Array
from minllm.tiles.warp import maximum_over_rows, sum_over_rows


class Operands(NamedTuple):
    """Query heads in registers: B operands of this head of the line, and the loaded words of the next."""

    fragments: Array  # uint32 [8-head tiles, steps of 16, 2]
    loaded: Array  # the same


class State(NamedTuple):
    """The attention state of a lane's heads, float32."""

    maxima: Array  # [2 * 8-head tiles]
    sums: Array  # the same shape; over this lane's keys only
    acc: Array  # [16-dim tiles, 8-head tiles, 4]: O^T
    highest: Array  # [1]: the largest exponent so far (unified_maximum.py)


@functools.cache
def make_products(sizes):
    """The Products (matmuls) of a tile; with TMA, tiles are swizzled."""
    multiply, pack = (mma_m16n8k16_bf16, pack_bf16x2) if sizes.dtype == "bfloat16" else (mma_m16n8k16_f16, pack_f16x2)
    head_dim, steps, columns, keys, swizzled = sizes.head_dim, sizes.steps, sizes.columns, sizes.shape.keys, sizes.shape.tensor_copies
    key_tiles, row_bytes, values_at = keys // 16, sizes.row_bytes, sizes.stage_bytes // 2
    query_count, score_count, weight_count = 2 * steps * columns, 4 * key_tiles * columns, 2 * columns

    @cuda.jit(device=True)
    def chunk_at(tile, row, step, half, lane):
        """Shared address of the left or right 8 of the 16 numbers of a step in `row`; row % 8 is lane % 8."""
        if swizzled:  # [head_dim / 64][keys][64]
            chunk = (2 * (step % 4) + half) ^ (lane % 8)
            return uint32(tile + (step // 4 * keys + row) * 128 + chunk * 16)
        return uint32(tile + row * row_bytes + 32 * step + 16 * half)

    @cuda.jit(device=True)
    def load_query(operands, query, line_heads, lane):
        """Load query heads as B operands, directly from memory; zeros for heads and columns that do not exist."""
        for column in range(columns):
            head = int32(column * 8 + lane // 4)
            first = (int64(line_heads.row) * query.shape[1] + line_heads.first + head) * head_dim + int64(lane % 4 * 2)
            for step in range(steps):
                for half in range(2):
                    word = uint32(0)
                    if head < line_heads.left and 16 * step + 8 * half + lane % 4 * 2 < head_dim:
                        word = load_32(query, first + int64(16 * step + 8 * half))
                    operands.loaded[2 * (column * steps + step) + half] = word

    @cuda.jit(device=True)
    def prepare(operands, state, cursor, cache, lane):
        """Copy the loaded words to the fragments: they are B operands already."""
        for i in range(query_count):
            operands.fragments[i] = operands.loaded[i]

    @cuda.jit(device=True)
    def score_tile(scores, operands, ring):
        """scores[16-key tile, 8-head tile] = K q^T. Even and odd steps are summed apart: two short chains of mma, not a long one."""
        stage, lane, fragments = ring.stage, ring.lane, operands.fragments
        key_fragments = cuda.local.array(4, uint32)
        odd = cuda.local.array(score_count, float32)
        for i in range(score_count):
            scores[i] = float32(0.0)
            odd[i] = float32(0.0)
        for step in range(steps):
            for key_tile in range(key_tiles):
                ldmatrix_x4(key_fragments, 0, chunk_at(stage, 16 * key_tile + lane % 16, step, lane // 16, lane))
                for column in range(columns):
                    at = 4 * (key_tile * columns + column)
                    if step % 2 == 0:
                        multiply(scores, at, key_fragments, 0, fragments, 2 * (column * steps + step))
                    else:
                        multiply(odd, at, key_fragments, 0, fragments, 2 * (column * steps + step))
        for i in range(score_count):
            scores[i] += odd[i]

    @cuda.jit(device=True)
    def mask_tile(scores, position, visible, lane):
        """Set scores of keys that are not visible to -inf; position: of the tile's first key."""
        start, stop = visible
        for key_tile in range(key_tiles):
            for half in range(2):
                key = int32(position + 16 * key_tile + 8 * half + lane // 4)
                if key < start or key >= stop:
                    for column in range(columns):
                        for i in range(2):
                            scores[4 * (key_tile * columns + column) + 2 * half + i] = float32(MINUS_INFINITY)

    @cuda.jit(device=True)
    def multiply_values(state, weights, ring):
        """acc[16-dim tile, 8-head tile] += V^T P^T."""
        value_fragments = cuda.local.array(4, uint32)
        transposed = cuda.local.array(weight_count, uint32)
        values, row = uint32(ring.stage + values_at), ring.lane % 8 + ring.lane // 16 * 8
        for key_tile in range(key_tiles):
            for column in range(columns):
                at = 4 * (key_tile * columns + column)
                transposed[2 * column] = movmatrix_trans(pack(weights[at], weights[at + 1]))
                transposed[2 * column + 1] = movmatrix_trans(pack(weights[at + 2], weights[at + 3]))
            for step in range(steps):
                ldmatrix_x4_trans(value_fragments, 0, chunk_at(values, 16 * key_tile + row, step, ring.lane // 8 % 2, ring.lane))
                for column in range(columns):
                    multiply(state.acc, 4 * (step * columns + column), value_fragments, 0, transposed, 2 * column)

    return Products(load_query, prepare, score_tile, mask_tile, multiply_values, score_count)


@functools.cache
def make_softmax(sizes):
    """The Softmax with a running maximum."""
    head_dim, steps, columns, key_tiles = sizes.head_dim, sizes.steps, sizes.columns, sizes.shape.keys // 16
    out_count, state_count = 4 * steps * columns, 2 * columns

    @cuda.jit(device=True)
    def clear(state, phi, running):
        """Set the state to that of no keys."""
        for i in range(out_count):
            state.acc[i] = float32(0.0)
        for i in range(state_count):
            state.maxima[i] = float32(MINUS_INFINITY)
            state.sums[i] = float32(0.0)

    @cuda.jit(device=True)
    def fold(scores, state, operands, running, scale, ring):
        """Replace scores by weights; update maxima, sums and acc."""
        for column in range(columns):
            for i in range(2):
                maximum = state.maxima[2 * column + i]
                for j in range(2 * key_tiles):
                    maximum = max(maximum, scores[4 * (j // 2 * columns + column) + j % 2 * 2 + i])
                maximum = maximum_over_rows(maximum)
                shift = finite_or_zero(maximum)
                correction = ex2((state.maxima[2 * column + i] - shift) * scale)
                state.maxima[2 * column + i] = maximum
                total = state.sums[2 * column + i] * correction  # this lane's keys only
                for j in range(2 * key_tiles):
                    at = 4 * (j // 2 * columns + column) + j % 2 * 2 + i
                    scores[at] = ex2((scores[at] - shift) * scale)
                    total += scores[at]
                state.sums[2 * column + i] = total
                for j in range(2 * steps):
                    state.acc[4 * (j // 2 * columns + column) + j % 2 * 2 + i] *= correction

    @cuda.jit(device=True)
    def share(state, operands, states, line_heads, ring):
        """Write this warp's state to shared memory."""
        warp, lane = uint32(ring.warp), ring.lane
        for column in range(columns):
            for i in range(2):
                head = int32(8 * column + lane % 4 * 2 + i)
                total = sum_over_rows(state.sums[2 * column + i])
                if head < line_heads.left:
                    if lane < 4:
                        states.maxima[warp, uint32(head)] = state.maxima[2 * column + i]
                        states.sums[warp, uint32(head)] = total
                    for step in range(steps):
                        for half in range(2):
                            dim = int32(16 * step + 8 * half + lane // 4)
                            if dim < head_dim:
                                states.outs[warp, uint32(head), uint32(dim)] = state.acc[4 * (step * columns + column) + 2 * half + i]

    return Softmax(clear, fold, share)
