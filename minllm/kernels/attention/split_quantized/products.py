"""The matmul of a tile of quantised values, and the mask that all kinds of keys (integers, floats, channels) share.

An integer key is k = s c + z, with codes c, and a scale and a zero per group of channels. Neither is applied to elements of K or V:

    q . k = sum over groups of    s (q . c) + z sum(q)             one multiply-add per score and group, not per element
    p v   = (p s) . c + p . z     the weight includes the scale; the zeros add one number for all channels of a group

so that the codes themselves are the operands. q . c is computed in integers (integers.py). (p s) . c and p . z are computed in float16:
weights are transposed first, two keys per word, and multiplied by the scales of two keys at a time; the same words hold the zeros,
which are the A operand of p . z. 8-bit floats are operands as they are; their scale, one per head, is included in the scale of the scores
and of the output, as is the unit of integers converted to float16 (codes.py).

S^T is [keys, heads], O^T [channels, heads]; codes.py says which elements a lane holds.
"""

import functools

from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.attention.common.online_softmax import MINUS_INFINITY
from minllm.kernels.attention.split_quantized.codes import lanes_of
from minllm.kernels.attention.split_quantized.layout import make_chunk_at, make_scale_places
from minllm.kernels.quantization.cache_decoder import operands_of
from minllm.ptx import fma_f16x2, ldmatrix_x2_trans, ldmatrix_x4_trans, mma_m16n8k16_f16, movmatrix_trans, pack_f16x2, prmt

LOWER_HALVES, UPPER_HALVES = 0x5410, 0x7632  # prmt: the lower, or the upper, 16 bits of two words


@functools.cache
def make_mask(layout, heads_here):
    """mask_tile(scores, position, visible, lane): device function that sets scores of keys that are not visible to -inf."""
    keys, heads = layout.keys, lanes_of(layout.kv_format, heads_here).heads

    @cuda.jit(device=True)
    def mask_tile(scores, position, visible, lane):
        start, stop = visible
        if position < start or int32(position + keys) > stop:
            for row in range(keys // 8):
                key = int32(position + 8 * row + lane // 4)
                if key < start or key >= stop:
                    for j in range(heads):
                        scores[row * heads + j] = float32(MINUS_INFINITY)

    return mask_tile


@functools.cache
def make_value_products(layout, heads_here):
    """multiply_values(state, weights, ring): acc [16-channel tile, 8-head tile] += V^T P^T, with weights times scales as P; zero_sums +=
    weights times zeros."""
    kv_format, lanes, chunks = layout.kv_format, lanes_of(layout.kv_format, heads_here), layout.chunks
    integers, groups = not kv_format.is_float, kv_format.groups
    heads, columns, halves, shared, lane_groups = lanes.heads, lanes.columns, lanes.halves, lanes.shared, lanes.lane_groups
    operands = operands_of(kv_format)
    value_operands, chunk_steps, group_steps = operands.value_operands, operands.steps, kv_format.head_dim // 16 // groups
    key_tiles, tile_bytes, scales_at = layout.keys // 16, 16 * layout.row_bytes, layout.scale_words
    chunk_at, values_at, (_, scale_word_of) = make_chunk_at(layout), key_tiles * tile_bytes, make_scale_places(layout)
    zero_tiles, transposed_words = lanes.zero_tiles, 2 * columns
    scaled_words, zero_words = transposed_words * lane_groups, 4 * zero_tiles

    @cuda.jit(device=True)
    def scale_weights(scaled, zeros, transposed, lift, words, first_word):
        """Set scaled, the B operands of a lane's groups, to weights times scales, and zeros, A operands of two of its groups each."""
        for half in range(2):
            for i in range(lane_groups):
                word = first_word + (8 * half * groups + i)
                one, next_one = words[word], words[word + groups]  # scales of two keys
                factors = fma_f16x2(prmt(one, next_one, uint32(LOWER_HALVES)), lift, uint32(0))
                zeros[4 * (i // 2) + 2 * half + i % 2] = prmt(one, next_one, uint32(UPPER_HALVES))
                for column in range(columns):
                    scaled[2 * (i * columns + column) + half] = fma_f16x2(transposed[2 * column + half], factors, uint32(0))

    @cuda.jit(device=True)
    def multiply_values(state, weights, ring):
        zero_sums, acc, lane = state.zero_sums, state.acc, ring.lane
        words, a = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        transposed, scaled = cuda.local.array(transposed_words, uint32), cuda.local.array(scaled_words, uint32)
        zeros = cuda.local.array(zero_words, uint32)
        for i in range(zero_words):
            zeros[i] = uint32(0)
        first_group = lane // 4 % 2 * lane_groups if shared else 0  # first group of this lane's column
        first_word = int64(scale_word_of(ring)) + int64(scales_at + lane % 4 * (2 * groups) + first_group)
        for key_tile in range(key_tiles):
            for half in range(2):
                for column in range(columns):
                    at = (2 * key_tile + half) * heads + column * halves
                    transposed[2 * column + half] = movmatrix_trans(pack_f16x2(weights[at], weights[at + halves - 1]))
            if integers:
                scale_weights(scaled, zeros, transposed, state.lift[0], ring.words, first_word + 16 * key_tile * groups)
                for i in range(zero_tiles):
                    for column in range(columns):
                        mma_m16n8k16_f16(zero_sums, 4 * (i * columns + column), zeros, 4 * i, transposed, 2 * column)
            else:
                for i in range(transposed_words):
                    scaled[i] = transposed[i]
            for pair in range((chunks + 1) // 2):
                address = chunk_at(ring.stage + values_at + key_tile * tile_bytes, pair, lane)
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
