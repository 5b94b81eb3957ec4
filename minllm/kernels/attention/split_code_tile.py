"""What a warp does with a tile of quantised keys and values on tensor cores: split_tile.py without ever making the keys or values.

A key of integers is k = s c + z: codes c, and a scale and a zero for every group of channels. Neither is applied to a number of K or V:

    q . k = sum over groups of    s (q . c) + z sum(q)             one multiply-add a score and group, instead of one a number
    p v   = (p s) . c + p . z     the weight takes the scale along; what the zeros add is one number for all channels of a group

so that the codes themselves, exact in float16, are the operands. 8-bit floats are operands as they are; their scale, one a head, goes
into the scale of the scores and the output, as does the unit that integers become operands in (split_codes.py).

All operands are float16. A head's queries are brought into its range by a power of two (`units`), which the scores' scale takes back.
So are weights, with the largest scale of the values so far (split_code_fold.py).

Shapes and lanes are split_tile.py's: S^T [keys, heads], O^T [channels, heads], a lane holds heads 2 * (lane % 4) and the next.
"""

import functools

from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.attention.split_code_ring import chunks_of, row_bytes_of
from minllm.kernels.attention.split_codes import operands_of
from minllm.kernels.warp import ALL_LANES
from minllm.ptx import (
    float_as_uint,
    ldmatrix_x2,
    ldmatrix_x2_trans,
    ldmatrix_x4,
    ldmatrix_x4_trans,
    load_32,
    mma_m16n8k16_f16,
    movmatrix_trans,
    pack_f16x2,
    uint_as_float,
    unpack_bf16x2,
    unpack_f16x2,
)

EXPONENT_BITS, TWO_EXPONENTS = 0x7F800000, 0x7F000000  # 2**e has the bits of TWO_EXPONENTS less those of 2**-e
SMALLEST, LARGEST = 0x1F800000, 0x5F800000  # the bits of 2**-64 and 2**64: queries beyond are not brought all the way


@cuda.jit(device=True)
def over_row(value):
    """The sum of a value over the four lanes of a row."""
    value += cuda.shfl_xor_sync(ALL_LANES, value, 1)
    return value + cuda.shfl_xor_sync(ALL_LANES, value, 2)


@functools.cache
def make_query_preparation(kv_format, dtype, heads):
    """(load_query, prepare_query): the query heads as B operands, `heads` of them, a multiple of 8."""
    head_dim, groups, integers = kv_format.head_dim, kv_format.groups, not kv_format.is_float
    operands = operands_of(kv_format.name)
    query_channel, unit, parts, upper_factor = operands.query_channel, operands.unit, operands.steps, operands.upper_factor
    unpack = unpack_bf16x2 if dtype == "bfloat16" else unpack_f16x2
    steps, columns = head_dim // 16, heads // 8
    group_steps = steps // groups

    @cuda.jit(device=True)
    def load_query(fragments, query, row, first_head, heads_left, lane):
        """The queries as they lie in memory; zeros for heads that do not exist."""
        for column in range(columns):
            head = int32(column * 8 + lane // 4)
            base = (int64(row) * query.shape[1] + first_head + head) * head_dim
            for step in range(steps):
                for half in range(2):
                    word = uint32(0)
                    if head < heads_left:
                        word = load_32(query, base + query_channel(step, half, lane))
                    fragments[2 * (column * steps + step) + half] = word

    @cuda.jit(device=True)
    def prepare_query(fragments, loaded, units, query_sums, lane):
        """float16 fragments of q / p, p a power of two; what their products with codes are to be multiplied by (units), and for integers
        sum(q) by group in the same units. A lane's are those of its two columns."""
        for column in range(columns):
            at = 2 * column * steps
            largest = float32(0.0)
            for i in range(2 * steps):
                low, high = unpack(loaded[at + i])
                largest = max(largest, max(abs(low), abs(high)))
            largest = max(largest, cuda.shfl_xor_sync(ALL_LANES, largest, 1))
            largest = max(largest, cuda.shfl_xor_sync(ALL_LANES, largest, 2))
            bits = uint32(float_as_uint(largest) & uint32(EXPONENT_BITS))
            bits = uint32(min(max(bits, uint32(SMALLEST)), uint32(LARGEST)))
            power, inverse = uint_as_float(bits), uint_as_float(uint32(uint32(TWO_EXPONENTS) - bits))
            for i in range(2):
                units[2 * column + i] = float32(1 / unit) * cuda.shfl_sync(ALL_LANES, power, 8 * (lane % 4) + 4 * i)
            for group in range(groups):
                total = float32(0.0)
                for j in range(2 * group_steps):
                    i = at + 2 * group * group_steps + j
                    upper = parts == 2 and j // 2 % 2 == 1  # meets codes that are upper_factor times too large
                    low, high = unpack(loaded[i])
                    shrink = inverse * float32(1 / upper_factor) if upper else inverse
                    fragments[i] = pack_f16x2(low * shrink, high * shrink)
                    total += low + high
                if integers:
                    total = over_row(total) * inverse * float32(unit)
                    for i in range(2):
                        query_sums[2 * (group * columns + column) + i] = cuda.shfl_sync(ALL_LANES, total, 8 * (lane % 4) + 4 * i)

    return load_query, prepare_query


@functools.cache
def make_code_products(kv_format, keys, heads):
    """(score_tile, multiply_values) for `keys` keys and `heads` query heads, multiples of 16 and 8."""
    groups, integers = kv_format.groups, not kv_format.is_float
    operands = operands_of(kv_format.name)
    key_operands, value_operands = operands.key_operands, operands.value_operands
    steps, columns, key_tiles = kv_format.head_dim // 16, heads // 8, keys // 16
    chunks, chunk_steps, row_bytes = chunks_of(kv_format), operands.steps, row_bytes_of(kv_format)
    group_steps, values_at, scales_at = steps // groups, keys * row_bytes, 2 * keys * row_bytes // 4
    chains = max(2, groups)  # sums of scores: of a group each, or of even and odd steps: short chains of products, not a long one
    tile_words = 4 * key_tiles * columns
    chain_words, turned_words = chains * tile_words, 2 * groups * columns

    @cuda.jit(device=True)
    def scale_sums(scores, sums, query_sums, rings, stage_word, key_tile, group, lane):
        """scores[key_tile] (+)= scale * sums + zero * sum(q) of one group, by the scales of this lane's keys."""
        first_word = int64(stage_word) + int64(scales_at + lane // 4 * groups)  # of this lane's first key
        for half in range(2):
            scale, zero = unpack_f16x2(rings[first_word + ((16 * key_tile + 8 * half) * groups + group)])
            for column in range(columns):
                for i in range(2):
                    at = 4 * (key_tile * columns + column) + 2 * half + i
                    score = zero * query_sums[2 * (group * columns + column) + i]
                    if group > 0:
                        score += scores[at]
                    product = sums[at] + sums[tile_words + at] if groups == 1 else sums[group * tile_words + at]
                    scores[at] = score + scale * product

    @cuda.jit(device=True)
    def score_tile(scores, fragments, query_sums, rings, stage_word, stage, lane):
        """scores[16-key tile, 8-head tile] = K q^T, divided by units."""
        words, a = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        sums = cuda.local.array(chain_words, float32)
        for i in range(chain_words):
            sums[i] = float32(0.0)
        for pair in range((chunks + 1) // 2):
            for key_tile in range(key_tiles):
                address = uint32(stage + (16 * key_tile + lane % 16) * row_bytes + 16 * (2 * pair + lane // 16))
                if 2 * pair + 1 < chunks:
                    ldmatrix_x4(words, 0, address)
                else:
                    ldmatrix_x2(words, 0, address)
                for step in range(2 * pair * chunk_steps, min(2 * pair + 2, chunks) * chunk_steps):
                    key_operands(a, words, 2 * (step // chunk_steps % 2), step % chunk_steps)
                    chain = step // group_steps if groups > 1 else step % 2
                    for column in range(columns):
                        at = 4 * ((chain * key_tiles + key_tile) * columns + column)
                        mma_m16n8k16_f16(sums, at, a, 0, fragments, 2 * (column * steps + step))
                    if integers and step % group_steps == group_steps - 1:
                        scale_sums(scores, sums, query_sums, rings, stage_word, key_tile, step // group_steps, lane)
        if not integers:
            for i in range(tile_words):
                scores[i] = sums[i] + sums[tile_words + i]

    @cuda.jit(device=True)
    def multiply_values(state, weights, pairs, stage, lane):
        """acc[16-channel tile, 8-head tile] += V^T P^T of weights times scales; zero_sums follow."""
        _, _, zero_sums, acc, _ = state
        words, a = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        turned = cuda.local.array(turned_words, uint32)
        for key_tile in range(key_tiles):
            for group in range(groups):
                for half in range(2):
                    factor, zero = float32(1.0), float32(0.0)
                    if integers:
                        factor, zero = unpack_f16x2(pairs[(2 * key_tile + half) * groups + group])
                    for column in range(columns):
                        at, to = 4 * (key_tile * columns + column) + 2 * half, 2 * (group * columns + column)
                        low, high = weights[at], weights[at + 1]
                        if integers:
                            zero_sums[to] += low * zero
                            zero_sums[to + 1] += high * zero
                            low, high = low * factor, high * factor
                        turned[to + half] = movmatrix_trans(pack_f16x2(low, high))
            for pair in range((chunks + 1) // 2):
                address = uint32(stage + values_at + (16 * key_tile + lane % 16) * row_bytes + 16 * (2 * pair + lane // 16))
                if 2 * pair + 1 < chunks:
                    ldmatrix_x4_trans(words, 0, address)
                else:
                    ldmatrix_x2_trans(words, 0, address)
                for step in range(2 * pair * chunk_steps, min(2 * pair + 2, chunks) * chunk_steps):
                    value_operands(a, words, 2 * (step // chunk_steps % 2), step % chunk_steps)
                    for column in range(columns):
                        to = 2 * (step // group_steps * columns + column)
                        mma_m16n8k16_f16(acc, 4 * (step * columns + column), a, 0, turned, to)

    return score_tile, multiply_values
