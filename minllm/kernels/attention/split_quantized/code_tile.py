"""What a warp does with a tile of quantised keys and values: tensor cores multiply the codes, and no key or value is ever made.

A key of integers is k = s c + z: codes c, and a scale and a zero for every group of channels. Neither is applied to a number of K or V:

    q . k = sum over groups of    s (q . c) + z sum(q)             one multiply-add a score and group, instead of one a number
    p v   = (p s) . c + p . z     the weight takes the scale along; what the zeros add is one number for all channels of a group

so that the codes themselves are the operands. q . c is a product of integers (code_query.py). (p s) . c and p . z are products of
float16: weights are transposed first, two keys a word, and multiplied by the scales of two keys at a time; the same words hold the zeros,
which are the A operand of p . z. 8-bit floats are operands as they are; their scale, one a head, goes into the scale of the scores and
the output, as does the unit that integers become float16 in (codes.py).

S^T is [keys, heads], O^T [channels, heads]; code_lanes.py has what of them a lane holds.
"""

import functools
import math

from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.attention.split_quantized.code_lanes import lanes_of
from minllm.kernels.attention.split_quantized.code_ring import LINE_BYTES, chunks_of, row_bytes_of, scale_words_of
from minllm.kernels.attention.split_quantized.codes import operands_of
from minllm.ptx import (
    fma_f16x2,
    ldmatrix_x2,
    ldmatrix_x2_trans,
    ldmatrix_x4,
    ldmatrix_x4_trans,
    mma_m16n8k16_f16,
    mma_m16n8k32_u8_s8,
    movmatrix_trans,
    pack_f16x2,
    prmt,
    unpack_f16x2,
)

LOWER_HALVES, UPPER_HALVES = 0x5410, 0x7632  # prmt: the lower, or the upper, 16 bits of two words
MINUS_INFINITY = -math.inf


@functools.cache
def make_chunk_at(kv_format, by_engine):
    """chunk_at(tile, pair, lane): the shared address that a lane gives ldmatrix for 16 rows of codes, of which it loads chunks 2 * pair and
    2 * pair + 1. tile: where the first of the rows begins."""
    row_bytes, row_chunks = row_bytes_of(kv_format, by_engine), chunks_of(kv_format)
    rows_a_line = max(1, LINE_BYTES // kv_format.code_bytes)

    @cuda.jit(device=True)
    def chunk_at(tile, pair, lane):
        row, chunk = uint32(lane) % uint32(16), uint32(lane) // uint32(16)
        if by_engine:  # lines of eight chunks, of which chunk c of line i lies at c ^ i: minllm/ptx/swizzle.py
            line = uint32(row // uint32(rows_a_line))
            within = uint32(row % uint32(rows_a_line) * uint32(row_chunks) + chunk)
            place = uint32(within ^ line % uint32(8) ^ uint32(2 * pair))
            return uint32(uint32(tile) + line * uint32(LINE_BYTES) + place * uint32(16))
        return uint32(tile + row * row_bytes + 16 * (2 * pair + chunk))

    return chunk_at


def make_scores(kv_format, shape, heads_here):
    """score_tile(scores, fragments, query_sums, rings, scale_word, stage, lane): scores [8-key rows, a lane's heads] = K q^T, in units.

    scale_word: where in `rings`, the block's shared memory as words, the scales of a stage begin.
    """
    return (make_float_scores if kv_format.is_float else make_integer_scores)(kv_format, shape, heads_here)


@functools.cache
def make_float_scores(kv_format, shape, heads_here):
    """make_scores for 8-bit floats."""
    key_operands, steps, lanes = operands_of(kv_format.name).key_operands, kv_format.head_dim // 16, lanes_of(kv_format, heads_here)
    columns, halves, key_tiles = lanes.columns, lanes.halves, shape.keys // 16
    chunk_at, tile_bytes = make_chunk_at(kv_format, shape.tensor_copies), 16 * row_bytes_of(kv_format, shape.tensor_copies)
    chain_words = 4 * key_tiles * columns
    sum_count = 2 * chain_words

    @cuda.jit(device=True)
    def score_tile(scores, fragments, query_sums, rings, scale_word, stage, lane):
        """Even and odd steps are summed apart: two short chains of products, not a long one."""
        words, a = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        sums = cuda.local.array(sum_count, float32)
        for i in range(sum_count):
            sums[i] = float32(0.0)
        for pair in range((steps + 1) // 2):
            for key_tile in range(key_tiles):
                address = chunk_at(stage + key_tile * tile_bytes, pair, lane)
                if 2 * pair + 1 < steps:
                    ldmatrix_x4(words, 0, address)
                else:
                    ldmatrix_x2(words, 0, address)
                for step in range(2 * pair, min(2 * pair + 2, steps)):
                    key_operands(a, words, 2 * (step % 2), 0)
                    for column in range(columns):
                        at = step % 2 * chain_words + 4 * (key_tile * columns + column)
                        mma_m16n8k16_f16(sums, at, a, 0, fragments, 2 * (column * steps + step))
        for row in range(2 * key_tiles):
            for column in range(columns):
                for i in range(halves):
                    at = 4 * (row // 2 * columns + column) + row % 2 * 2 + i
                    scores[(row * columns + column) * halves + i] = sums[at] + sums[chain_words + at]

    return score_tile


@functools.cache
def make_integer_scores(kv_format, shape, heads_here):
    """make_scores for integers."""
    groups, heads, key_tiles = kv_format.groups, lanes_of(kv_format, heads_here).heads, shape.keys // 16
    operands = operands_of(kv_format.name)
    key_operands, chunk_words = operands.key_operands, operands.steps  # of B, in a chunk of 16 bytes
    chunks, tile_bytes = chunks_of(kv_format), 16 * row_bytes_of(kv_format, shape.tensor_copies)
    chunk_at = make_chunk_at(kv_format, shape.tensor_copies)
    group_chunks, pitch = chunks // groups, -(-kv_format.head_dim // 32) * 2
    parts = 2 if chunk_words == 2 or group_chunks == 1 else 1  # products for a pair of chunks
    chains = max(2, groups)  # sums of scores: of a group each, or of even and odd pairs: short chains of products, not a long one
    chain_words = 4 * key_tiles * heads
    sum_count = chains * chain_words

    @cuda.jit(device=True)
    def scale_sums(scores, sums, query_sums, rings, scale_word, key_tile, group, lane):
        """scores[key_tile] (+)= scale * sums + zero * sum(q) of one group, by the scales of this lane's keys."""
        first_word = int64(scale_word) + int64(lane // 4 * groups)  # of this lane's first key
        for half in range(2):
            scale, zero = unpack_f16x2(rings[first_word + ((16 * key_tile + 8 * half) * groups + group)])
            for j in range(heads):
                at, to = 4 * (key_tile * heads + j) + 2 * half, (2 * key_tile + half) * heads + j
                upper, lower = sums[group * chain_words + at], sums[group * chain_words + at + 1]
                if groups == 1:
                    upper, lower = int32(upper + sums[chain_words + at]), int32(lower + sums[chain_words + at + 1])
                score = zero * query_sums[group * heads + j]
                if group > 0:
                    score += scores[to]
                scores[to] = score + scale * float32(int32(256 * upper + lower))

    @cuda.jit(device=True)
    def score_tile(scores, fragments, query_sums, rings, scale_word, stage, lane):
        """A group is done with as soon as its last chunk is."""
        words, a = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        sums = cuda.local.array(sum_count, int32)
        for i in range(sum_count):
            sums[i] = int32(0)
        for pair in range((chunks + 1) // 2):
            for key_tile in range(key_tiles):
                address = chunk_at(stage + key_tile * tile_bytes, pair, lane)
                if 2 * pair + 1 < chunks:
                    ldmatrix_x4(words, 0, address)
                else:
                    ldmatrix_x2(words, 0, address)
                    words[2], words[3] = uint32(0), uint32(0)
                for part in range(parts if 2 * pair + 1 < chunks else 1):
                    key_operands(a, words, part, parts)
                    group = (2 * pair + part) // group_chunks
                    chain = group if groups > 1 else (pair * parts + part) % 2
                    for j in range(heads):
                        at = chain * chain_words + 4 * (key_tile * heads + j)
                        mma_m16n8k32_u8_s8(sums, at, a, 0, fragments, j * pitch + 2 * (pair * chunk_words + part * (chunk_words - 1)))
                    end = min(2 * pair + (part + 1) * (3 - parts), chunks)  # of the chunks that have been multiplied
                    if end % group_chunks == 0:
                        scale_sums(scores, sums, query_sums, rings, scale_word, key_tile, group, lane)

    return score_tile


@functools.cache
def make_mask(kv_format, keys, heads_here):
    """mask_tile(scores, position, start, stop, lane): scores of keys before `start` or from `stop` on become -inf."""
    heads = lanes_of(kv_format, heads_here).heads

    @cuda.jit(device=True)
    def mask_tile(scores, position, start, stop, lane):
        for row in range(keys // 8):
            key = int32(position + 8 * row + lane // 4)
            if key < start or key >= stop:
                for j in range(heads):
                    scores[row * heads + j] = float32(MINUS_INFINITY)

    return mask_tile


@functools.cache
def make_value_products(kv_format, shape, heads_here):
    """multiply_values(state, weights, rings, scale_word, stage, lane): acc [16-channel tile, 8-head tile] += V^T P^T of weights times
    scales, and zero_sums of weights times zeros."""
    integers, groups, lanes = not kv_format.is_float, kv_format.groups, lanes_of(kv_format, heads_here)
    heads, columns, halves, shared, lane_groups = lanes.heads, lanes.columns, lanes.halves, lanes.shared, lanes.lane_groups
    operands = operands_of(kv_format.name)
    value_operands, chunk_steps, group_steps = operands.value_operands, operands.steps, kv_format.head_dim // 16 // groups
    chunks, key_tiles, tile_bytes = chunks_of(kv_format), shape.keys // 16, 16 * row_bytes_of(kv_format, shape.tensor_copies)
    chunk_at, values_at = make_chunk_at(kv_format, shape.tensor_copies), key_tiles * tile_bytes
    scales_at = scale_words_of(kv_format, shape.keys)
    zero_tiles, turned_words = zero_tiles_of(lanes), 2 * columns
    scaled_words, zero_words = turned_words * lane_groups, 4 * zero_tiles

    @cuda.jit(device=True)
    def scale_weights(scaled, zeros, turned, lift, rings, first_word):
        """scaled: B operands of a lane's groups, weights times scales; zeros: A operands of two of its groups each."""
        for half in range(2):
            for i in range(lane_groups):
                word = first_word + (8 * half * groups + i)
                one, next_one = rings[word], rings[word + groups]  # of two keys
                factors = fma_f16x2(prmt(one, next_one, uint32(LOWER_HALVES)), lift, uint32(0))
                zeros[4 * (i // 2) + 2 * half + i % 2] = prmt(one, next_one, uint32(UPPER_HALVES))
                for column in range(columns):
                    scaled[2 * (i * columns + column) + half] = fma_f16x2(turned[2 * column + half], factors, uint32(0))

    @cuda.jit(device=True)
    def multiply_values(state, weights, rings, scale_word, stage, lane):
        _, _, zero_sums, acc, _, lift = state
        words, a = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        turned, scaled = cuda.local.array(turned_words, uint32), cuda.local.array(scaled_words, uint32)
        zeros = cuda.local.array(zero_words, uint32)
        for i in range(zero_words):
            zeros[i] = uint32(0)
        first_group = lane // 4 % 2 * lane_groups if shared else 0  # of this lane's column
        first_word = int64(scale_word) + int64(scales_at + lane % 4 * (2 * groups) + first_group)
        for key_tile in range(key_tiles):
            for half in range(2):
                for column in range(columns):
                    at = (2 * key_tile + half) * heads + column * halves
                    turned[2 * column + half] = movmatrix_trans(pack_f16x2(weights[at], weights[at + halves - 1]))
            if integers:
                scale_weights(scaled, zeros, turned, lift[0], rings, first_word + 16 * key_tile * groups)
                for i in range(zero_tiles):
                    for column in range(columns):
                        mma_m16n8k16_f16(zero_sums, 4 * (i * columns + column), zeros, 4 * i, turned, 2 * column)
            else:
                for i in range(turned_words):
                    scaled[i] = turned[i]
            for pair in range((chunks + 1) // 2):
                address = chunk_at(stage + values_at + key_tile * tile_bytes, pair, lane)
                if 2 * pair + 1 < chunks:
                    ldmatrix_x4_trans(words, 0, address)
                else:
                    ldmatrix_x2_trans(words, 0, address)
                for step in range(2 * pair * chunk_steps, min(2 * pair + 2, chunks) * chunk_steps):
                    value_operands(a, words, 2 * (step // chunk_steps % 2), step % chunk_steps)
                    for column in range(columns):
                        of_group = 2 * (step // group_steps % lane_groups * columns + column)
                        mma_m16n8k16_f16(acc, 4 * (step * columns + column), a, 0, scaled, of_group)

    return multiply_values


def zero_tiles_of(lanes):
    """Products of weights and zeros for 16 keys and 8 heads: two of a lane's groups in each."""
    return -(-lanes.lane_groups // 2)
