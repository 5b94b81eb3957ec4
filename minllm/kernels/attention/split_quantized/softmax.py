"""Online softmax over scores of quantised keys, which rescales only when it must.

As in FlashAttention-4, weights are relative to a maximum that may lag behind the largest score: weights grow up to a factor of 2**SLACK. As
long as no lane of the warp finds a larger score, nothing is exchanged and nothing rescaled. A number subtracted from all scores cancels, so
the softmax is exact.

Weights, and weights times the scales of the values, become float16 operands. Weights are lifted by 2**BASE, away from float16's smallest
numbers, which costs nothing in an exponent. Scales are multiplied by `lift`, the reciprocal of a power of two above the largest scale so
far (`ceiling`), which lags behind in the same way.
"""

import functools
from typing import NamedTuple

from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.attention.split_quantized.codes import EXPONENT_BITS, TWO_EXPONENTS, lanes_of
from minllm.kernels.attention.split_quantized.layout import make_scale_places
from minllm.kernels.attention.split_tensor_core.tile_loop import Softmax
from minllm.kernels.quantization.cache_decoder import operands_of
from minllm.ptx import ex2, float_as_uint, max_f16x2, pack_f16x2, uint_as_float, unpack_f16x2
from minllm.runtime.array_protocol import Array
from minllm.tiles.warp import ALL_LANES, maximum_over_rows, sum_over_rows

SLACK, BASE = 8.0, 6.0  # exponents to base 2: weights are at most 2**14
UNLIFTED = 2.0**-BASE
NO_MAXIMUM = -1e12  # the maximum of no keys, in units: far below any score, but finite, so that -inf minus it is -inf
LOWEST_CEILING = 2.0**-15  # its reciprocal is float16's largest power of two
TWICE_DOUBLED = 2 << 23  # added to the bits of a float32 power of two, multiplies it by 4


class CodeState(NamedTuple):
    """The attention state of a lane's heads; float32 except lift."""

    maxima: Array  # [heads], in units
    sums: Array  # [heads]
    zero_sums: Array  # [zero tiles, columns, 4]: sums of weights times zeros
    acc: Array  # [16-channel tiles, columns, 4]: sums of weights times scales times codes
    ceiling: Array  # [1]: power of two above the scales of the values; for 8-bit floats, their scale
    lift: Array  # [1]: 1 / ceiling, twice as float16 in a word


@functools.cache
def make_code_softmax(layout, heads_here):
    """The Softmax for tiles in a CodeLayout and blocks of `heads_here` query heads."""
    kv_format, lanes = layout.kv_format, lanes_of(layout.kv_format, heads_here)
    head_dim, groups, integers = kv_format.head_dim, kv_format.groups, not kv_format.is_float
    heads, columns, halves, parts, lane_groups = lanes.heads, lanes.columns, lanes.halves, lanes.parts, lanes.lane_groups
    operands_of_format, zero_tiles, (_, scale_word_of) = operands_of(kv_format), lanes.zero_tiles, make_scale_places(layout)
    value_channel, unit = operands_of_format.value_channel, operands_of_format.unit
    chunk_steps, upper_factor = operands_of_format.steps, operands_of_format.upper_factor
    steps, rows, scale_words = head_dim // 16, layout.keys // 8, layout.scale_words
    words_each = -(-scale_words // 32)

    @cuda.jit(device=True)
    def clear(state, phi, running):
        """Set the state to that of no keys."""
        maxima, sums, zero_sums, acc, ceiling, lift = state
        ceiling[0] = float32(LOWEST_CEILING) if integers else float32(1.0)
        lift[0] = pack_f16x2(float32(1 / LOWEST_CEILING), float32(1 / LOWEST_CEILING))
        for j in range(heads):
            maxima[j] = float32(NO_MAXIMUM)
            sums[j] = float32(0.0)
        for i in range(4 * zero_tiles * columns):
            zero_sums[i] = float32(0.0)
        for i in range(4 * steps * columns):
            acc[i] = float32(0.0)

    @cuda.jit(device=True)
    def raise_ceiling(ceiling, lift, raised):
        """Raise the ceiling above the largest scale found by any lane. Returns the factor for sums of weights times scales."""
        raised = maximum_over_rows(raised)
        raised = max(raised, cuda.shfl_xor_sync(ALL_LANES, raised, 1))
        raised = max(raised, cuda.shfl_xor_sync(ALL_LANES, raised, 2))
        correction = float32(1.0)
        if raised >= ceiling[0]:
            bits = uint32((float_as_uint(raised) & uint32(EXPONENT_BITS)) + uint32(TWICE_DOUBLED))  # 2 to 4 times as large
            inverse = uint_as_float(uint32(uint32(TWO_EXPONENTS) - bits))
            correction = ceiling[0] * inverse
            ceiling[0] = uint_as_float(bits)
            lift[0] = pack_f16x2(inverse, inverse)
        return correction

    @cuda.jit(device=True)
    def rescale(state, largest, raised, units, scale):
        """Raise maxima and ceiling to the largest scores and scale, and rescale the sums."""
        maxima, sums, zero_sums, acc, ceiling, lift = state
        of_ceiling = float32(1.0)
        if integers:
            of_ceiling = raise_ceiling(ceiling, lift, raised)
        for j in range(heads):
            maximum = max(maxima[j], maximum_over_rows(largest[j]))
            correction = ex2((maxima[j] - maximum) * (units[j] * scale))
            maxima[j] = maximum
            sums[j] *= correction
            for part in range(parts // halves):
                first = 4 * (j // halves) + j % halves + part
                for k in range(2 * zero_tiles):
                    zero_sums[first + 4 * columns * (k // 2) + 2 * (k % 2)] *= correction
                for k in range(2 * steps):
                    acc[first + 4 * columns * (k // 2) + 2 * (k % 2)] *= correction * of_ceiling

    @cuda.jit(device=True)
    def fold(scores, state, operands, running, scale, ring):
        """Replace scores by weights, and update the state."""
        maxima, sums, units = state.maxima, state.sums, operands.units
        largest, raised, excess = cuda.local.array(heads, float32), float32(0.0), float32(0.0)
        for j in range(heads):
            best = scores[j]
            for row in range(1, rows):
                best = max(best, scores[row * heads + j])
            largest[j] = best
            excess = max(excess, (best - maxima[j]) * (units[j] * scale))
        if integers:
            top = uint32(0)
            for i in range(words_each):
                word = min(ring.lane * words_each + i, scale_words - 1)
                top = max_f16x2(top, ring.words[int64(scale_word_of(ring)) + int64(scale_words + word)])
            raised, _ = unpack_f16x2(top)
        if cuda.any_sync(ALL_LANES, excess > float32(SLACK) or (integers and raised >= state.ceiling[0])):
            rescale(state, largest, raised, units, scale)
        for j in range(heads):
            exponent_scale = units[j] * scale
            for row in range(rows):
                at = row * heads + j
                scores[at] = ex2((scores[at] - maxima[j]) * exponent_scale + float32(BASE))
                sums[j] += scores[at]

    @cuda.jit(device=True)
    def zeros_of(zero_sums, group, j, lane):
        """The sum of weights times zeros for a head and a group; all lanes of its column hold it."""
        at = 4 * (group % lane_groups // 2 * columns + j // halves) + group % lane_groups % 2 * 2 + j % halves
        if parts > halves:
            return cuda.shfl_sync(ALL_LANES, zero_sums[at], lane % 4 + 4 * (group // lane_groups))
        return zero_sums[at]

    @cuda.jit(device=True)
    def share(state, operands, states, line_heads, ring):
        """Write this warp's state to shared memory, in the units of queries and values."""
        maxima, sums, zero_sums, acc, ceiling, _ = state
        warp, lane = uint32(ring.warp), ring.lane
        for j in range(heads):
            head = int32(4 * j + lane % 4)
            total = sum_over_rows(sums[j]) * float32(UNLIFTED)
            if head < line_heads.left and lane < 4:
                states.maxima[warp, uint32(head)] = maxima[j] * operands.units[j]
                states.sums[warp, uint32(head)] = total
            for group in range(groups):
                added = float32(0.0)
                if integers:
                    added = zeros_of(zero_sums, group, j, lane) * float32(UNLIFTED)
                i = group // lane_groups if parts > halves else j % halves
                for step in range(group * steps // groups, (group + 1) * steps // groups):
                    upper = chunk_steps == 2 and step % 2 == 1
                    factor = float32(UNLIFTED / (unit * upper_factor) if upper else UNLIFTED / unit)
                    factor *= ceiling[0]
                    for half in range(2):
                        number = acc[4 * (step * columns + j // halves) + 2 * half + i] * factor + added
                        if head < line_heads.left:
                            states.outs[warp, uint32(head), uint32(value_channel(step, half, lane))] = number

    return Softmax(clear, fold, share)
