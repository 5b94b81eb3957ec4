"""What a warp does with a tile of keys on tensor cores when a few query heads share them (split_tensor_core.py).

Both products put the short side, the query heads, where mma has its 8 columns, and keys or head_dim on its 16 rows:

    S^T [keys, heads] = K q^T          O^T [head_dim, heads] += V^T P^T

K is the A operand as it lies in shared memory, V through ldmatrix's transposition. P^T comes out of the first product with keys along
the rows of its registers and is wanted with keys along their columns: movmatrix turns each 8x8 tile. So a group of up to 8 heads fills
the tensor core's columns, where rows of queries would fill half of it, and the output takes half of the registers.

A lane holds columns, that is heads, 2 * (lane % 4) and the next; its maxima and sums are those of these heads. `heads` is a multiple of 8.
"""

import functools
import math

from numba import cuda, float32, int32, int64, uint32

from minllm.ptx import (
    ldmatrix_x4,
    ldmatrix_x4_trans,
    load_32,
    mma_m16n8k16_bf16,
    mma_m16n8k16_f16,
    movmatrix_trans,
    pack_bf16x2,
    pack_f16x2,
)
from minllm.tiles.cp_async import row_words_of

MINUS_INFINITY = -math.inf


@functools.cache
def make_tile_products(dtype, head_dim, keys, heads, swizzled=False):
    """(load_query, score_tile, mask_tile, multiply_values) for `keys` keys and `heads` query heads, multiples of 16 and 8."""
    multiply, pack = (mma_m16n8k16_bf16, pack_bf16x2) if dtype == "bfloat16" else (mma_m16n8k16_f16, pack_f16x2)
    steps = -(-head_dim // 16)  # mma steps along head_dim; tiles of 16 rows of O^T
    columns = heads // 8  # tiles of 8 heads
    key_tiles = keys // 16
    row_bytes = 4 * row_words_of(head_dim)
    values_at = 2 * keys * head_dim if swizzled else keys * row_bytes
    score_count, weight_count = 4 * key_tiles * columns, 2 * columns

    @cuda.jit(device=True)
    def chunk_at(tile, row, step, half, lane):
        """Shared address of the left or right 8 numbers of a step of 16 in a row, which is lane % 8 in its group of eight rows."""
        if swizzled:  # [head_dim / 64][keys][64]: tensor_ring.py
            chunk = (2 * (step % 4) + half) ^ (lane % 8)
            return uint32(tile + (step // 4 * keys + row) * 128 + chunk * 16)
        return uint32(tile + row * row_bytes + 32 * step + 16 * half)

    @cuda.jit(device=True)
    def load_query(fragments, query, row, first_head, heads_left, lane):
        """The query heads as B operands, straight from memory; zeros for heads and columns that do not exist."""
        for column in range(columns):
            head = int32(column * 8 + lane // 4)
            base = (int64(row) * query.shape[1] + first_head + head) * head_dim
            for step in range(steps):
                for half in range(2):
                    dim = int32(16 * step + 8 * half + lane % 4 * 2)
                    word = uint32(0)
                    if head < heads_left and dim < head_dim:
                        word = load_32(query, base + dim)
                    fragments[2 * (column * steps + step) + half] = word

    @cuda.jit(device=True)
    def score_tile(scores, fragments, stage, lane):
        """scores[16-key tile, 8-head tile] = K q^T. Even and odd steps are summed apart: two short chains of products, not a long one."""
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
    def mask_tile(scores, position, start, stop, lane):
        """Scores of keys before `start` or from `stop` on become -inf; position is that of the tile's first key."""
        for key_tile in range(key_tiles):
            for half in range(2):
                key = int32(position + 16 * key_tile + 8 * half + lane // 4)
                if key < start or key >= stop:
                    for column in range(columns):
                        for i in range(2):
                            scores[4 * (key_tile * columns + column) + 2 * half + i] = float32(MINUS_INFINITY)

    @cuda.jit(device=True)
    def multiply_values(acc, weights, stage, lane):
        """acc[16-dim tile, 8-head tile] += V^T P^T."""
        value_fragments = cuda.local.array(4, uint32)
        turned = cuda.local.array(weight_count, uint32)
        values, row = uint32(stage + values_at), lane % 8 + lane // 16 * 8
        for key_tile in range(key_tiles):
            for column in range(columns):
                at = 4 * (key_tile * columns + column)
                turned[2 * column] = movmatrix_trans(pack(weights[at], weights[at + 1]))
                turned[2 * column + 1] = movmatrix_trans(pack(weights[at + 2], weights[at + 3]))
            for step in range(steps):
                ldmatrix_x4_trans(value_fragments, 0, chunk_at(values, 16 * key_tile + row, step, lane // 8 % 2, lane))
                for column in range(columns):
                    multiply(acc, 4 * (step * columns + column), value_fragments, 0, turned, 2 * column)

    return load_query, score_tile, mask_tile, multiply_values
