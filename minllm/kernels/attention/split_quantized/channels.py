"""Scores of keys quantised by channel: the scales are applied to the query.

In a group of TOKEN_GROUP keys, channel i of key j is k_ji = s_i c_ji + z_i, with the same s_i and z_i for all keys of the group. So

    q . k_j = sum_i (q_i s_i) c_ji + sum_i q_i z_i

A tile is one group. The query's operands are multiplied by the tile's scales, two channels per instruction, and the codes are the other
operand as they are. The sum of zeros is the score of one more key, z, which fills all rows of its operand: mma leaves it in every lane that
has a score of that head.

The 4 bits of a code, masked in their word, are a float16 (codes.py): code * 2**-24, or 16 times that for the upper nibbles of bytes. A step
of 16 channels has nibbles of one kind, and even and odd steps are summed apart.

FLOPs in addition to those of K q^T: head_dim / 16 mma of 16 by 16 by 8 per tile for the zeros, and head_dim for q_i s_i. Lanes: codes.py.
Source: Liu et al. 2024, "KIVI", arXiv 2402.02750, section 3.
"""

import functools

from numba import cuda, float32, int64, uint32

from minllm.kernels.attention.split_quantized import floats
from minllm.kernels.attention.split_quantized.codes import lanes_of
from minllm.kernels.attention.split_quantized.layout import make_chunk_at, make_scale_places
from minllm.kernels.attention.split_quantized.products import LOWER_HALVES, UPPER_HALVES
from minllm.kernels.quantization.cache_decoder import nibbles, operands_of
from minllm.ptx import fma_f16x2, ldmatrix_x2, mma_m16n8k16_f16, prmt

make_query, query_counts = floats.make_query, floats.query_counts  # queries are float16 operands, as for floats


@cuda.jit(device=True)
def key_operands(a, words, part):
    """The four words of A for step `part` of a chunk: nibbles 16 bits apart, of the first and of the last eight keys."""
    for row in range(2):
        a[row] = nibbles(words[row], part)
        a[2 + row] = nibbles(words[row] >> uint32(8), part)


@functools.cache
def make_scores(layout, heads_here):
    """score_tile(scores, operands, ring): scores [8-key rows, a lane's heads] = K q^T."""
    kv_format, lanes, chunks = layout.kv_format, lanes_of(layout.kv_format, heads_here), layout.chunks
    steps, operands_of_format = kv_format.head_dim // 16, operands_of(kv_format)
    columns, halves, key_tiles = lanes.columns, lanes.halves, layout.keys // 16
    chunk_at, tile_bytes, (_, scale_word_of) = make_chunk_at(layout), 16 * layout.row_bytes, make_scale_places(layout)
    chain_words, zero_count = 4 * key_tiles * columns, 4 * columns  # sums of even or of odd steps; zero sums of both
    sum_count, scaled_words = 2 * chain_words, 4 * columns
    even_factor, odd_factor = 1 / operands_of_format.unit, 1 / (operands_of_format.unit * operands_of_format.upper_factor)

    @cuda.jit(device=True)
    def scale_query(scaled, zero_sums, fragments, ring, scale_word, chunk):
        """Multiply the operands of a chunk's two steps by the scales of their channels, and add q . z to zero_sums."""
        zeros = cuda.local.array(4, uint32)
        first = int64(scale_word) + int64(32 * chunk + 8 * (ring.lane % 4))  # first word of eight consecutive channels
        for part in range(2):
            step = 2 * chunk + part
            for half in range(2):
                one, next_one = ring.words[first + (4 * half + 2 * part)], ring.words[first + (4 * half + 2 * part + 1)]
                scale, zero = prmt(one, next_one, uint32(LOWER_HALVES)), prmt(one, next_one, uint32(UPPER_HALVES))
                zeros[2 * half], zeros[2 * half + 1] = zero, zero
                for column in range(columns):
                    to = 2 * (part * columns + column) + half
                    scaled[to] = fma_f16x2(fragments[2 * (column * steps + step) + half], scale, uint32(0))
            for column in range(columns):
                mma_m16n8k16_f16(zero_sums, 4 * column, zeros, 0, fragments, 2 * (column * steps + step))

    @cuda.jit(device=True)
    def score_tile(scores, operands, ring):
        scale_word, lane = scale_word_of(ring), ring.lane
        words, a = cuda.local.array(2, uint32), cuda.local.array(4, uint32)
        scaled = cuda.local.array(scaled_words, uint32)
        sums, zero_sums = cuda.local.array(sum_count, float32), cuda.local.array(zero_count, float32)
        for i in range(sum_count):
            sums[i] = float32(0.0)
        for i in range(zero_count):
            zero_sums[i] = float32(0.0)
        for chunk in range(chunks):
            scale_query(scaled, zero_sums, operands.fragments, ring, scale_word, chunk)
            for key_tile in range(key_tiles):
                ldmatrix_x2(words, 0, chunk_at(ring.stage + key_tile * tile_bytes, chunk // 2, lane % 16 + 16 * (chunk % 2)))
                for part in range(2):
                    key_operands(a, words, part)
                    for column in range(columns):
                        at = part * chain_words + 4 * (key_tile * columns + column)
                        mma_m16n8k16_f16(sums, at, a, 0, scaled, 2 * (part * columns + column))
        for row in range(2 * key_tiles):
            for column in range(columns):
                for i in range(halves):
                    at = 4 * (row // 2 * columns + column) + row % 2 * 2 + i
                    products = sums[at] * float32(even_factor) + sums[chain_words + at] * float32(odd_factor)
                    scores[(row * columns + column) * halves + i] = products + zero_sums[4 * column + i]

    return score_tile
