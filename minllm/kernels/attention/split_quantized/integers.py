"""Keys that are integers, multiplied as integers: int8 and int4.

Codes are operands of integer tensor cores as they are. A query is converted to integers too: a head's components are divided by a unit
chosen so that the largest becomes LARGEST_INTEGER, rounded, and split into an upper and a lower signed byte,

    q = (256 upper + lower) * unit

which are two neighbouring columns of one mma, in the same lane. So the dot product of bytes is exact, and a query keeps nearly 16 bits
relative to its largest component, whereas bfloat16 has 8 bits of each. Scales and zeros of a group are applied to its sum (products.py).

cache_decoder.py decodes: key_operands(a, words, part, parts) makes the four words of A for an mma over 32 channels, the `part`-th of the
`parts` for two chunks, from their four words. Word i of B for a head has four channels: two from query_channel(i, 0, lane) on and two from
query_channel(i, 1, lane) on, in byte_order.
"""

import functools

from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.attention.split_quantized.codes import lanes_of
from minllm.kernels.attention.split_quantized.layout import make_chunk_at, make_scale_places
from minllm.kernels.quantization.cache_decoder import operands_of
from minllm.ptx import (
    float_as_uint,
    ldmatrix_x2,
    ldmatrix_x4,
    load_32,
    mma_m16n8k32_u8_s8,
    prmt,
    rcp,
    unpack_bf16x2,
    unpack_f16x2,
)
from minllm.tiles.warp import ALL_LANES, maximum_of_row, sum_of_row

LARGEST_INTEGER = 32000.0  # fits two signed bytes; 256 * 255 times it, the largest dot product of a head, fits int32
LEAST, MOST = 2.0**-64, 2.0**64  # the largest component is clamped to this range
INTEGER = 1.5 * 2.0**23  # adding it to a float32 leaves the number, rounded to an integer, in the lowest bits
UPPER_BYTES, LOWER_BYTES = 0x51, 0x40  # prmt: bytes 1, or bytes 0, of two words


def query_counts(kv_format, heads_here):
    """(words per lane of queries as loaded, words per lane of operands)."""
    lanes, words = lanes_of(kv_format, heads_here), kv_format.head_dim // 16
    return 2 * words * lanes.heads, (words + words % 2) * lanes.heads


@functools.cache
def make_query(kv_format, dtype, heads_here, head_tiles):
    """(load_query, prepare) of walk.Products, for a block of `heads_here` query heads of 16-bit `dtype`."""
    head_dim, groups, lane_heads = kv_format.head_dim, kv_format.groups, lanes_of(kv_format, heads_here).heads
    operands = operands_of(kv_format)
    query_channel, byte_order = operands.query_channel, operands.byte_order
    unpack = unpack_bf16x2 if dtype == "bfloat16" else unpack_f16x2
    words = head_dim // 16
    pitch, group_words = words + words % 2, words // groups

    @cuda.jit(device=True)
    def load_query(operands, query, heads, lane):
        for j in range(lane_heads):
            head = int32(4 * j + lane // 8)
            base = (int64(heads.row) * query.shape[1] + heads.first + head) * head_dim
            for word in range(words):
                for half in range(2):
                    number = uint32(0)
                    if head < heads.left:
                        number = load_32(query, base + query_channel(word, half, lane))
                    operands.loaded[2 * (j * words + word) + half] = number

    @cuda.jit(device=True)
    def pick_bytes(bits, lower):
        """A word of B: one byte of each of four integers."""
        pick = uint32(LOWER_BYTES) if lower else uint32(UPPER_BYTES)
        left, right = prmt(bits[0], bits[1], pick), prmt(bits[2], bits[3], pick)
        return prmt(left, right, uint32(byte_order))

    @cuda.jit(device=True)
    def prepare_query(operands, state, cursor, cache, lane):
        fragments, loaded, units, sums = operands
        lower = lane // 4 % 2 == 1  # this column's half of the query
        mine = int32(8 * (lane % 4))  # a lane that holds the query of this lane's head
        integer = float32(INTEGER) if lower else float32(INTEGER + 128.0)  # + 128 rounds the upper byte, because the lower one is signed
        bits = cuda.local.array(4, uint32)
        for j in range(lane_heads):
            largest = float32(0.0)
            for i in range(2 * words):
                low, high = unpack(loaded[2 * j * words + i])
                largest = max(largest, max(abs(low), abs(high)))
            largest = min(max(maximum_of_row(largest), float32(LEAST)), float32(MOST))
            units[j] = cuda.shfl_sync(ALL_LANES, largest, mine) * float32(1 / LARGEST_INTEGER)
            factor = float32(LARGEST_INTEGER) * rcp(largest)
            for group in range(groups):
                total = float32(0.0)
                for i in range(group_words):
                    at = group * group_words + i
                    for half in range(2):
                        first, second = unpack(loaded[2 * (j * words + at) + half])
                        total += first + second
                        bits[2 * half] = float_as_uint(first * factor + integer)
                        bits[2 * half + 1] = float_as_uint(second * factor + integer)
                    fragments[j * pitch + at] = pick_bytes(bits, lower)
                sums[group * lane_heads + j] = cuda.shfl_sync(ALL_LANES, sum_of_row(total) * factor, mine)
            if pitch > words:
                fragments[j * pitch + words] = uint32(0)

    return load_query, prepare_query


@functools.cache
def make_scores(layout, heads_here):
    """score_tile(scores, operands, ring): scores [8-key rows, a lane's heads] = K q^T, in units."""
    kv_format, chunks, key_tiles, tile_bytes = layout.kv_format, layout.chunks, layout.keys // 16, 16 * layout.row_bytes
    groups, heads, operands_of_format = kv_format.groups, lanes_of(kv_format, heads_here).heads, operands_of(kv_format)
    key_operands, chunk_words = operands_of_format.key_operands, operands_of_format.steps  # words of B per chunk of 16 bytes
    chunk_at, (_, scale_word_of) = make_chunk_at(layout), make_scale_places(layout)
    group_chunks, pitch = chunks // groups, -(-kv_format.head_dim // 32) * 2
    parts = 2 if chunk_words == 2 or group_chunks == 1 else 1  # mma instructions per pair of chunks
    chains = max(2, groups)  # one sum per group, or one of even and one of odd pairs: short chains of mma
    chain_words = 4 * key_tiles * heads
    sum_count = chains * chain_words

    @cuda.jit(device=True)
    def scale_sums(scores, sums, query_sums, ring, scale_word, key_tile, group):
        """scores[key_tile] (+)= scale * sums + zero * sum(q) for one group, with the scales of this lane's keys."""
        first_word = int64(scale_word) + int64(ring.lane // 4 * groups)  # word of this lane's first key
        for half in range(2):
            scale, zero = unpack_f16x2(ring.words[first_word + ((16 * key_tile + 8 * half) * groups + group)])
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
    def score_tile(scores, operands, ring):
        """A group is scaled as soon as its last chunk has been multiplied."""
        scale_word = scale_word_of(ring)
        words, a = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        sums = cuda.local.array(sum_count, int32)
        for i in range(sum_count):
            sums[i] = int32(0)
        for pair in range((chunks + 1) // 2):
            for key_tile in range(key_tiles):
                address = chunk_at(ring.stage + key_tile * tile_bytes, pair, ring.lane)
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
                        word = j * pitch + 2 * (pair * chunk_words + part * (chunk_words - 1))
                        mma_m16n8k32_u8_s8(sums, at, a, 0, operands.fragments, word)
                    end = min(2 * pair + (part + 1) * (3 - parts), chunks)  # end of the chunks that have been multiplied
                    if end % group_chunks == 0:
                        scale_sums(scores, sums, operands.sums, ring, scale_word, key_tile, group)

    return score_tile
