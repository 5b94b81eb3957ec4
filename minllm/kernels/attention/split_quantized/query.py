"""Query heads as operands for products with codes: float16, or two int8.

Integer codes are operands of integer tensor cores as they are. A query becomes integers too: a head's components are divided by a unit that
makes the largest LARGEST_INTEGER, rounded, and split into an upper and a lower signed byte,

    q = (256 upper + lower) * unit

which are two columns of one product, neighbours in the same lane. So a product of bytes is exact, and a query is kept to nearly 16 bits of
its largest component, where bfloat16 has 8 bits of each. For 8-bit floats, and for keys by channel, whose scales the query is multiplied by
first (channel_scores.py), a power of two brings queries into float16's range. Products are multiplied by the units afterwards.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.attention.split_quantized.codes import lanes_of, operands_of
from minllm.kernels.attention.split_tensor_core.plan import quotient
from minllm.ptx import float_as_uint, load_32, pack_f16x2, prmt, rcp, uint_as_float, unpack_bf16x2, unpack_f16x2
from minllm.tiles.warp import ALL_LANES

EXPONENT_BITS, TWO_EXPONENTS = 0x7F800000, 0x7F000000  # 2**e has the bits of TWO_EXPONENTS less those of 2**-e
SMALLEST, LARGEST = 0x1F800000, 0x5F800000  # the bits of 2**-64 and 2**64: queries beyond are not brought all the way
LARGEST_INTEGER = 32000.0  # within two bytes, and 256 times 255 times as much, the largest product of a head, within int32
LEAST, MOST = 2.0**-64, 2.0**64  # the largest component is taken to be at least, and at most
INTEGER = 1.5 * 2.0**23  # an integer added to it stands in the lowest bits of the sum
UPPER_BYTES, LOWER_BYTES = 0x51, 0x40  # prmt: bytes 1, or bytes 0, of two words


class QueryOperands(NamedTuple):
    """Query heads in registers."""

    fragments: Any  # uint32: B operands, of floats [columns, steps of 16 channels, 2], of integers [a lane's heads, words of 4 channels]
    loaded: Any  # uint32: the queries of the next head of the line, as they lie in memory
    units: Any  # float32 [a lane's heads]: what products are multiplied by
    sums: Any  # float32 [groups, a lane's heads]: for integers, sum(q) in the same units


@cuda.jit(device=True)
def over_row(value):
    """The sum of a value over the four lanes of a row."""
    value += cuda.shfl_xor_sync(ALL_LANES, value, 1)
    return value + cuda.shfl_xor_sync(ALL_LANES, value, 2)


@cuda.jit(device=True)
def largest_of_row(value):
    """The largest value of the four lanes of a row."""
    value = max(value, cuda.shfl_xor_sync(ALL_LANES, value, 1))
    return max(value, cuda.shfl_xor_sync(ALL_LANES, value, 2))


@cuda.jit(device=True)
def power_of_two(largest):
    """(2**e, 2**-e), 2**e the power of two below a number."""
    bits = uint32(float_as_uint(largest) & uint32(EXPONENT_BITS))
    bits = uint32(min(max(bits, uint32(SMALLEST)), uint32(LARGEST)))
    return uint_as_float(bits), uint_as_float(uint32(uint32(TWO_EXPONENTS) - bits))


def query_counts(kv_format, heads_here):
    """(words of a lane's queries as they lie in memory, words of operands)."""
    lanes, words = lanes_of(kv_format, heads_here), kv_format.head_dim // 16
    if kv_format.is_float or kv_format.keys_by_channel:
        return 2 * words * lanes.columns, 2 * words * lanes.columns
    return 2 * words * lanes.heads, (words + words % 2) * lanes.heads


def make_query_preparation(kv_format, dtype, heads_here, head_tiles):
    """(load_query, prepare_query) as walk.Products has them, for a block of `heads_here` query heads of 16-bit `dtype`."""
    make = make_float_query if kv_format.is_float or kv_format.keys_by_channel else make_integer_query
    return make(kv_format, dtype, heads_here, head_tiles)


@functools.cache
def make_float_query(kv_format, dtype, heads_here, head_tiles):
    """make_query_preparation for 8-bit floats, and for keys by channel."""
    head_dim, lanes = kv_format.head_dim, lanes_of(kv_format, heads_here)
    steps, columns, halves, unit_count = head_dim // 16, lanes.columns, lanes.halves, lanes.heads
    query_channel, floats = operands_of(kv_format.name).query_channel, kv_format.is_float
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
            power, inverse = power_of_two(largest_of_row(largest))
            for i in range(halves):
                units[column * halves + i] = cuda.shfl_sync(ALL_LANES, power, 8 * (lane % 4) + 4 * i)
            for i in range(2 * steps):
                low, high = unpack(loaded[at + i])
                fragments[at + i] = pack_f16x2(low * inverse, high * inverse)
        if floats:  # scales of the whole KV head
            kv_head = uint32(quotient(cursor.head, head_tiles))
            state.ceiling[0] = cache.value_scales[kv_head]
            for i in range(unit_count):
                units[i] *= cache.key_scales[kv_head]

    return load_query, prepare_query


@functools.cache
def make_integer_query(kv_format, dtype, heads_here, head_tiles):
    """make_query_preparation for integers."""
    head_dim, groups, lane_heads = kv_format.head_dim, kv_format.groups, lanes_of(kv_format, heads_here).heads
    operands = operands_of(kv_format.name)
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
        mine = int32(8 * (lane % 4))  # a lane that holds the queries of this lane's head
        integer = float32(INTEGER) if lower else float32(INTEGER + 128.0)  # the lower byte is of a sign: the upper one is rounded
        bits = cuda.local.array(4, uint32)
        for j in range(lane_heads):
            largest = float32(0.0)
            for i in range(2 * words):
                low, high = unpack(loaded[2 * j * words + i])
                largest = max(largest, max(abs(low), abs(high)))
            largest = min(max(largest_of_row(largest), float32(LEAST)), float32(MOST))
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
                sums[group * lane_heads + j] = cuda.shfl_sync(ALL_LANES, over_row(total) * factor, mine)
            if pitch > words:
                fragments[j * pitch + words] = uint32(0)

    return load_query, prepare_query
