"""Keys that are 8-bit floats, multiplied as float16: fp8_e4m3 and fp8_e5m2.

cache_decoder.py converts them. key_operands has the arguments of value_operands, and query_channel(step, half, lane) is the first of the
two channels in word `half` of B.

A query is divided by a power of two that brings it into float16's range; scores are multiplied by it afterwards, and by the scale of the KV
head.
"""

import functools

from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.attention.split_quantized.codes import EXPONENT_BITS, TWO_EXPONENTS, lanes_of
from minllm.kernels.attention.split_quantized.layout import make_chunk_at
from minllm.kernels.attention.split_tensor_core.plan import quotient
from minllm.kernels.quantization.cache_decoder import operands_of
from minllm.ptx import (
    float_as_uint,
    ldmatrix_x2,
    ldmatrix_x4,
    load_32,
    mma_m16n8k16_f16,
    pack_f16x2,
    uint_as_float,
    unpack_bf16x2,
    unpack_f16x2,
)
from minllm.tiles.warp import ALL_LANES, maximum_of_row

SMALLEST, LARGEST = 0x1F800000, 0x5F800000  # bits of 2**-64 and 2**64, to which the power of two is clamped


@cuda.jit(device=True)
def power_of_two(largest):
    """(2**e, 2**-e), with 2**e the largest power of two that is at most `largest`, clamped to 2**-64 to 2**64."""
    bits = uint32(float_as_uint(largest) & uint32(EXPONENT_BITS))
    bits = uint32(min(max(bits, uint32(SMALLEST)), uint32(LARGEST)))
    return uint_as_float(bits), uint_as_float(uint32(uint32(TWO_EXPONENTS) - bits))


def query_counts(kv_format, heads_here):
    """(words per lane of queries as loaded, words per lane of operands)."""
    count = kv_format.head_dim // 8 * lanes_of(kv_format, heads_here).columns
    return count, count


@functools.cache
def make_query(kv_format, dtype, heads_here, head_tiles):
    """(load_query, prepare) of walk.Products, for a block of `heads_here` query heads of 16-bit `dtype`."""
    head_dim, lanes = kv_format.head_dim, lanes_of(kv_format, heads_here)
    steps, columns, halves, unit_count = head_dim // 16, lanes.columns, lanes.halves, lanes.heads
    query_channel, floats = operands_of(kv_format).query_channel, kv_format.is_float
    unpack = unpack_bf16x2 if dtype == "bfloat16" else unpack_f16x2

    @cuda.jit(device=True)
    def load_query(operands, query, heads, lane):
        for column in range(columns):
            head = int32(8 * column + lane // 8 + lane // 4 % 2 * 4)
            base = (int64(heads.row) * query.shape[1] + heads.first + head) * head_dim
            for step in range(steps):
                for half in range(2):
                    word = uint32(0)
                    if head < heads.left:
                        word = load_32(query, base + query_channel(step, half, lane))
                    operands.loaded[2 * (column * steps + step) + half] = word

    @cuda.jit(device=True)
    def prepare_query(operands, state, cursor, cache, lane):
        fragments, loaded, units, _ = operands
        for column in range(columns):
            at = 2 * column * steps
            largest = float32(0.0)
            for i in range(2 * steps):
                low, high = unpack(loaded[at + i])
                largest = max(largest, max(abs(low), abs(high)))
            power, inverse = power_of_two(maximum_of_row(largest))
            for i in range(halves):
                units[column * halves + i] = cuda.shfl_sync(ALL_LANES, power, 8 * (lane % 4) + 4 * i)
            for i in range(2 * steps):
                low, high = unpack(loaded[at + i])
                fragments[at + i] = pack_f16x2(low * inverse, high * inverse)
        if floats:  # one scale per KV head
            kv_head = uint32(quotient(cursor.head, head_tiles))
            state.ceiling[0] = cache.value_scales[kv_head]
            for i in range(unit_count):
                units[i] *= cache.key_scales[kv_head]

    return load_query, prepare_query


@functools.cache
def make_scores(layout, heads_here):
    """score_tile(scores, operands, ring): scores [8-key rows, a lane's heads] = K q^T, in units."""
    kv_format, lanes = layout.kv_format, lanes_of(layout.kv_format, heads_here)
    key_operands, steps = operands_of(kv_format).key_operands, kv_format.head_dim // 16
    columns, halves, key_tiles = lanes.columns, lanes.halves, layout.keys // 16
    chunk_at, tile_bytes = make_chunk_at(layout), 16 * layout.row_bytes
    chain_words = 4 * key_tiles * columns
    sum_count = 2 * chain_words

    @cuda.jit(device=True)
    def score_tile(scores, operands, ring):
        """Even and odd steps are summed apart: two short chains of mma, not a long one."""
        words, a = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        sums = cuda.local.array(sum_count, float32)
        for i in range(sum_count):
            sums[i] = float32(0.0)
        for pair in range((steps + 1) // 2):
            for key_tile in range(key_tiles):
                address = chunk_at(ring.stage + key_tile * tile_bytes, pair, ring.lane)
                if 2 * pair + 1 < steps:
                    ldmatrix_x4(words, 0, address)
                else:
                    ldmatrix_x2(words, 0, address)
                for step in range(2 * pair, min(2 * pair + 2, steps)):
                    key_operands(a, words, 2 * (step % 2), 0)
                    for column in range(columns):
                        at = step % 2 * chain_words + 4 * (key_tile * columns + column)
                        mma_m16n8k16_f16(sums, at, a, 0, operands.fragments, 2 * (column * steps + step))
        for row in range(2 * key_tiles):
            for column in range(columns):
                for i in range(halves):
                    at = 4 * (row // 2 * columns + column) + row % 2 * 2 + i
                    scores[(row * columns + column) * halves + i] = sums[at] + sums[chain_words + at]

    return score_tile
