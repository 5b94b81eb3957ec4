"""What a warp of FlashAttention-2 does with a tile of queries and a tile of keys: both products on mma.m16n8k16, and the softmax between.

A warp owns `row_tiles` times 16 rows of the block's tile. An accumulator is made of 16-by-8 tiles, of which a thread holds four numbers:
rows lane // 4 and lane // 4 + 8 ("half" 0 and 1), columns 2 * (lane % 4) and the next. Scores come out of the first product in just the
registers in which the second wants its A operand, once they are packed to 16 bits.
"""

import functools
import math
from dataclasses import dataclass

from numba import cuda, float32, int32, uint32

from minllm.kernels.attention.common.online_softmax import finite_or_zero
from minllm.kernels.attention.common.shared_tiles import row_words_of
from minllm.kernels.attention.common.window_keys import ALL, make_row_keys
from minllm.ptx import ex2, ldmatrix_x4, ldmatrix_x4_trans, mma_m16n8k16_bf16, mma_m16n8k16_f16, shared_address

MINUS_INFINITY = -math.inf
REGISTER_FILE = 65536  # 32-bit registers of a multiprocessor


@dataclass(frozen=True)
class WarpTiles:
    """The tiles of a block: query_tile a multiple of 16 * warps, key_tile of 16."""

    head_dim: int
    query_tile: int
    key_tile: int
    warps: int

    @property
    def threads(self):
        """Of a block."""
        return 32 * self.warps

    @property
    def row_tiles(self):
        """Tiles of 16 rows that a warp owns."""
        return self.query_tile // (16 * self.warps)

    @property
    def padded_dim(self):
        """head_dim with the zeros that make it a multiple of an mma step's depth."""
        return -(-self.head_dim // 16) * 16

    @property
    def keys_at(self):
        """Shared memory, in words: Q, then K from here on."""
        return self.query_tile * row_words_of(self.head_dim)

    @property
    def values_at(self):
        """And V from here on."""
        return self.keys_at + self.key_tile * row_words_of(self.head_dim)

    @property
    def shared_bytes(self):
        """Shared memory of a block."""
        return 4 * (self.values_at + self.key_tile * row_words_of(self.head_dim))

    @property
    def query_in_registers(self):
        """Whether Q stays in registers; else its fragments are read again for every tile of keys."""
        return self.padded_dim * self.row_tiles <= 128

    @property
    def query_words(self):
        """Registers of a thread for fragments of Q."""
        return (self.padded_dim // 4 if self.query_in_registers else 4) * self.row_tiles

    @property
    def score_count(self):
        """Scores of a thread."""
        return self.key_tile // 2 * self.row_tiles

    @property
    def out_count(self):
        """Elements of the output of a thread."""
        return self.padded_dim // 2 * self.row_tiles

    @property
    def blocks_at_once(self):
        """Blocks that ptxas is to fit into a multiprocessor's registers, so that one computes while others wait; all without spills."""
        registers = -(-(self.query_words + self.score_count + self.out_count + 40 * self.row_tiles) // 8) * 8
        limit = 3 if self.query_in_registers and self.padded_dim <= 64 else 2
        return max(1, min(limit, REGISTER_FILE // (self.threads * registers)))


@functools.cache
def make_warp_products(dtype, tiles, score_rows):
    """(load_query_fragments, multiply_query_key, multiply_weights_values) for 16-bit `dtype`."""
    multiply = mma_m16n8k16_bf16 if dtype == "bfloat16" else mma_m16n8k16_f16
    row_words, keys_at, values_at = row_words_of(tiles.head_dim), tiles.keys_at, tiles.values_at
    row_tiles, query_in_registers, score_count = tiles.row_tiles, tiles.query_in_registers, tiles.score_count
    steps, dim_tiles = tiles.padded_dim // 16, tiles.padded_dim // 8  # mma steps along head_dim, 8-column tiles of it
    key_pairs, key_tiles = tiles.key_tile // 16, tiles.key_tile // 8  # pairs of 8-key tiles, as ldmatrix.x4 brings them
    weight_words = 4 * row_tiles

    @cuda.jit(device=True)
    def load_query_fragments(fragments, at, shared, warp_row, row_tile, step, lane):
        """A operand of one step: rows by lane % 16, left and right 8 columns by lane // 16."""
        row = warp_row + 16 * row_tile + lane % 16
        ldmatrix_x4(fragments, at, shared_address(shared, row * row_words + step * 8 + lane // 16 * 4))

    @cuda.jit(device=True)
    def multiply_query_key(scores, query_fragments, shared, warp_row, lane):
        """scores[16-row tile, 8-key tile] = Q K^T of the tiles in shared memory."""
        key_fragments = cuda.local.array(4, uint32)
        for i in range(score_count):
            scores[i] = float32(0.0)
        row = lane % 8 + lane // 16 * 8  # two 8-key tiles, each with its left and right 8 columns
        source = shared_address(shared, keys_at + row * row_words + lane // 8 % 2 * 4)
        for step in range(steps):
            if not query_in_registers:
                for row_tile in range(row_tiles):
                    load_query_fragments(query_fragments, 4 * row_tile, shared, warp_row, row_tile, step, lane)
            for pair in range(key_pairs):
                ldmatrix_x4(key_fragments, 0, uint32(source + 4 * (16 * pair * row_words + 8 * step)))
                for row_tile in range(row_tiles):
                    a = 4 * (row_tile * steps + step) if query_in_registers else 4 * row_tile
                    c = 4 * (row_tile * key_tiles + 2 * pair)
                    multiply(scores, c, query_fragments, a, key_fragments, 0)
                    multiply(scores, c + 4, query_fragments, a, key_fragments, 2)

    @cuda.jit(device=True)
    def multiply_weights_values(acc, weights, shared, lane):
        """acc[16-row tile, 8-column tile] += P V; P's accumulator registers, packed to 16 bits, are the A operand."""
        source = shared_address(shared, values_at + lane % 16 * row_words + lane // 16 * 4)
        weight_fragments = cuda.local.array(weight_words, uint32)
        value_fragments = cuda.local.array(4, uint32)
        for pair in range(key_pairs):
            for row_tile in range(row_tiles):
                score_rows.pack(weights, row_tile, pair, weight_fragments, 4 * row_tile)
            for dim_pair in range(steps):
                ldmatrix_x4_trans(value_fragments, 0, uint32(source + 4 * (16 * pair * row_words + 8 * dim_pair)))
                for row_tile in range(row_tiles):
                    c = 4 * (row_tile * dim_tiles + 2 * dim_pair)
                    multiply(acc, c, weight_fragments, 4 * row_tile, value_fragments, 0)
                    multiply(acc, c + 4, weight_fragments, 4 * row_tile, value_fragments, 2)

    return load_query_fragments, multiply_query_key, multiply_weights_values


@functools.cache
def make_warp_softmax(tiles, score_rows, out_rows, part=ALL, residual_window=0):
    """(mask, fold_softmax): between the two products; part, residual_window: which keys there are, as in window_keys.py."""
    first_key_of, last_key_of = make_row_keys(part, residual_window)
    half_rows = 2 * tiles.row_tiles

    @cuda.jit(device=True)
    def mask(scores, first_key, row_position, sliding_window, lane):
        """Scores of keys that a row may not see become -inf; row_position is the position of the warp's row lane // 4."""
        tile_start = int32(first_key + score_rows.column(lane))
        for row in range(half_rows):
            position = int32(row_position + row // 2 * 16 + row % 2 * 8)
            first, last = first_key_of(position, sliding_window), last_key_of(position)
            score_rows.mask(scores, row, int32(first - tile_start), int32(last - tile_start))

    @cuda.jit(device=True)
    def fold_softmax(scores, maxima, sums, acc, scale):
        """Scores become exp(scores - new maximum); maxima, sums and accumulators follow. Rows are spread over four lanes."""
        for row in range(half_rows):
            maximum = score_rows.maximum(scores, row, maxima[row])
            # Subtracted before it is scaled: the likeliest key then weighs exactly 1. A fused scores * scale - shift would keep the
            # rounding error of shift (at logits of 1e5 a part in 300) in the sum, but not in the weights, which are rounded to 16 bits.
            shift = finite_or_zero(maximum)
            correction = ex2((maxima[row] - shift) * scale)
            maxima[row] = maximum
            sums[row] = score_rows.exponentials(scores, row, shift, scale, sums[row] * correction)
            out_rows.scale(acc, row, correction)

    return mask, fold_softmax
