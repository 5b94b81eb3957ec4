"""Quantise one head from registers into a quantised cache: lanes compute its scales together, and each stores its codes.

Threads to data: eight neighbouring components per lane, one 128-bit load of 16-bit numbers, so that a head of 64, 128 or 256 takes 8, 16 or
32 lanes and several heads share a warp. A group's minimum and maximum are found by shuffles between its lanes (tiles/warp.py does the same
for sums). A head with a lane count that is not a power of two (80 and 96 components) is padded with lanes that repeat its last components:
they change no minimum or maximum, and store nothing.

A lane's codes are 8 bytes (int8, fp8) or 4 (int4); a head's codes are contiguous. The first lane of each group stores its scale and
zero. The result equals quantization/reference.py bit for bit: the reciprocal is exact, and adding 1.5 * 2**23 rounds as rint does.
"""

import functools

from numba import cuda, float32, int64, uint32

from minllm.kernels.quantization.lanes import EACH, ROUNDING, make_extremes, pack_nibbles_of
from minllm.kernels.vector import load_4_float32
from minllm.ptx import float_as_uint, pack_e4m3x2, pack_e5m2x2, pack_f16x2, prmt, rcp_rn, store_32, store_64, unpack_f16x2


def lanes_of(components):
    """Lanes for this number of components: a power of two."""
    return 1 << (components // EACH - 1).bit_length()


@cuda.jit(device=True)
def rounded_code(value, zero, inverse, levels):
    """round((value - zero) * inverse), between 0 and `levels`, in the lowest byte."""
    code = min(max((value - zero) * inverse, float32(0)), levels)
    return float_as_uint(code + float32(ROUNDING))


@cuda.jit(device=True)
def smooth(smoothing, row, component, values):
    """values = (values - smoothing[0]) * smoothing[1] for the components from `component` on of KV head `row`."""
    means, factors = cuda.local.array(EACH, float32), cuda.local.array(EACH, float32)
    rows, row_length = smoothing.shape[1], smoothing.shape[2]
    for k in range(0, EACH, 4):
        load_4_float32(smoothing, row * row_length + component + k, means, k)
        load_4_float32(smoothing, (rows + row) * row_length + component + k, factors, k)
    for k in range(EACH):
        values[k] = (values[k] - means[k]) * factors[k]


@cuda.jit(device=True)
def unsmooth(smoothing, row, component, values):
    """values *= smoothing[2] of a query, which cancels the factors of the smoothed keys of KV head `row` in attention's dot products."""
    factors = cuda.local.array(EACH, float32)
    for k in range(0, EACH, 4):
        load_4_float32(smoothing, (2 * smoothing.shape[1] + row) * smoothing.shape[2] + component + k, factors, k)
    for k in range(EACH):
        values[k] *= factors[k]


def pack_pair_of(kv_format):
    """The instruction that rounds two float32 to codes of an 8-bit float format, the first in the lowest byte."""
    return pack_e5m2x2 if kv_format.name == "fp8_e5m2" else pack_e4m3x2


@functools.cache
def make_store_quantized(kv_format, block_size):
    """The device function store_quantized(codes, scales, slot, kv_head, lane, values, stores) for caches of this format.

    codes, scales: arrays of a QuantizedCache. lane: index within the head. values: the lane's float32 [EACH]. stores: whether this lane
    writes. The whole warp must call it, because its lanes shuffle.
    """
    code_bytes, groups, is_float = kv_format.code_bytes, kv_format.groups, kv_format.is_float
    range_of_group, active_group_lanes = make_extremes(lanes_of(kv_format.group_size)), kv_format.group_size // EACH
    levels, inverse_levels, four_bits = kv_format.levels, 1 / kv_format.levels, kv_format.bits == 4
    pack_pair = pack_pair_of(kv_format)

    @cuda.jit(device=True)
    def row_of(codes, slot, kv_head):
        """Index of this head and slot among the rows [num_blocks, kv_heads, block_size]."""
        block, offset = uint32(slot) // uint32(block_size), uint32(slot) % uint32(block_size)
        return (int64(block) * codes.shape[1] + kv_head) * block_size + offset

    @cuda.jit(device=True)
    def first_bytes(bits, at):
        """The lowest bytes of four words as one word."""
        low, high = prmt(bits[at], bits[at + 1], uint32(0x0040)), prmt(bits[at + 2], bits[at + 3], uint32(0x0040))
        return prmt(low, high, uint32(0x5410))

    @cuda.jit(device=True)
    def store_codes(codes, at, values, zero, inverse):
        """Store round((value - zero) * inverse), clamped to the code range, from byte `at` on."""
        bits = cuda.local.array(EACH, uint32)
        for k in range(EACH):
            bits[k] = rounded_code(values[k], zero, inverse, float32(levels))
        if four_bits:
            store_32(codes, at, pack_nibbles_of(bits))
        else:
            store_64(codes, at, first_bytes(bits, 0), first_bytes(bits, 4))

    @cuda.jit(device=True)
    def store_integers(codes, scales, slot, kv_head, lane, values, stores):
        """Store a lane's codes, computed from float16 scale and zero; the first lane of a group stores that pair."""
        low, high = range_of_group(values)
        pair = pack_f16x2((high - low) * float32(inverse_levels), low)
        scale, zero = unpack_f16x2(pair)
        if stores:
            inverse = rcp_rn(scale) if scale > float32(0) else float32(0)
            row = row_of(codes, slot, kv_head)
            store_codes(codes, row * code_bytes + lane * (EACH // 2 if four_bits else EACH), values, zero, inverse)
            if lane % active_group_lanes == 0:
                store_32(scales, (row * groups + lane // active_group_lanes) * 2, pair)

    @cuda.jit(device=True)
    def store_floats(codes, scales, slot, kv_head, lane, values, stores):
        """Store a lane's codes, computed with the given scale of the KV head."""
        if stores:
            inverse = rcp_rn(scales[kv_head])
            low = pack_pair(values[0] * inverse, values[1] * inverse) | pack_pair(values[2] * inverse, values[3] * inverse) << uint32(16)
            high = pack_pair(values[4] * inverse, values[5] * inverse) | pack_pair(values[6] * inverse, values[7] * inverse) << uint32(16)
            store_64(codes, row_of(codes, slot, kv_head) * code_bytes + lane * EACH, low, high)

    return store_floats if is_float else store_integers
