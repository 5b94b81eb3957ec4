"""Online softmax in the registers of the scores of quantised keys, and the state of a head brought to an end (split_quantized.py).

A state rescales only when it must (Dao's FlashAttention-4 does the same): weights are taken to a maximum that may lag behind the largest
score by a factor of 2**SLACK. As long as no lane of the warp meets a larger one, nothing is exchanged and nothing multiplied. The
exact softmax comes out all the same, since whatever is subtracted from all scores cancels.

Weights times the scales of the values become float16 operands. So that they use that format's range, weights are divided by 2**ceiling,
a power of two above the largest scale so far, which lags behind in the same way, and lifted by 2**BASE, away from float16's smallest: both
are added to the exponent, and cost nothing.
"""

import functools

from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.attention.split_code_ring import row_bytes_of, scale_words_of
from minllm.kernels.attention.split_codes import operands_of
from minllm.kernels.attention.split_fold import maximum_over_rows
from minllm.kernels.attention.split_merge_parts import sum_over_rows
from minllm.kernels.warp import ALL_LANES
from minllm.ptx import ex2, float_as_uint, max_f16x2, unpack_f16x2

SLACK, BASE = 8.0, 6.0  # exponents to base 2: weights are at most 2**14
NO_MAXIMUM = -1e12  # of no keys, in the units of the scores: far below any, but finite, so that -inf less it is -inf
LOWEST_CEILING = -23.0  # above float16's smallest number


@functools.cache
def make_code_folds(kv_format, keys, heads):
    """(clear, fold, share_states) for tiles of `keys` keys and `heads` query heads, multiples of 16 and 8.

    A state is the tuple (maxima, sums, zero_sums, acc, ceiling) of local arrays.
    """
    head_dim, groups, integers = kv_format.head_dim, kv_format.groups, not kv_format.is_float
    operands = operands_of(kv_format.name)
    value_channel, unit, chunk_steps, upper_factor = operands.value_channel, operands.unit, operands.steps, operands.upper_factor
    steps, columns, key_tiles = head_dim // 16, heads // 8, keys // 16
    group_steps = steps // groups
    value_scales_at = 2 * keys * row_bytes_of(kv_format) // 4 + scale_words_of(kv_format, keys)
    state_count = 2 * columns

    @cuda.jit(device=True)
    def clear(state):
        """The state of no keys."""
        maxima, sums, zero_sums, acc, ceiling = state
        ceiling[0] = float32(LOWEST_CEILING) if integers else float32(0.0)
        for i in range(state_count):
            maxima[i] = float32(NO_MAXIMUM)
            sums[i] = float32(0.0)
            for group in range(groups):
                zero_sums[group * state_count + i] = float32(0.0)
        for i in range(4 * steps * columns):
            acc[i] = float32(0.0)

    @cuda.jit(device=True)
    def rescale(state, largest, raised, units, scale):
        """Catch up with the largest scores, and the largest scale, that any lane has met."""
        maxima, sums, zero_sums, acc, ceiling = state
        raise_by = float32(0.0)
        if integers:
            raised = maximum_over_rows(raised)
            if raised >= ex2(ceiling[0]):
                exponent = float32(int32(float_as_uint(raised) >> uint32(23)) - 125)  # of a power of two, 2 to 4 times as large
                raise_by = exponent - ceiling[0]
                ceiling[0] = exponent
        for column in range(columns):
            for i in range(2):
                maximum = max(maxima[2 * column + i], maximum_over_rows(largest[2 * column + i]))
                correction = ex2((maxima[2 * column + i] - maximum) * (units[2 * column + i] * scale) - raise_by)
                maxima[2 * column + i] = maximum
                sums[2 * column + i] *= correction
                for group in range(groups):
                    zero_sums[2 * (group * columns + column) + i] *= correction
                for j in range(2 * steps):
                    acc[4 * (j // 2 * columns + column) + j % 2 * 2 + i] *= correction

    @cuda.jit(device=True)
    def fold(scores, pairs, state, units, scale, rings, stage_word, lane):
        """Scores become weights, and the state follows; pairs: the scales and zeros of this lane's values."""
        maxima, sums, _, _, ceiling = state
        largest, raised, excess = cuda.local.array(state_count, float32), float32(0.0), float32(0.0)
        for column in range(columns):
            for i in range(2):
                best = scores[4 * column + i]
                for j in range(1, 2 * key_tiles):
                    best = max(best, scores[4 * (j // 2 * columns + column) + j % 2 * 2 + i])
                largest[2 * column + i] = best
                excess = max(excess, (best - maxima[2 * column + i]) * (units[2 * column + i] * scale))
        if integers:
            first_word, top = int64(stage_word) + int64(value_scales_at + lane // 4 * groups), uint32(0)
            for j in range(2 * key_tiles):
                for group in range(groups):
                    pairs[j * groups + group] = rings[first_word + (8 * j * groups + group)]
                    top = max_f16x2(top, pairs[j * groups + group])
            raised, _ = unpack_f16x2(top)
        if cuda.any_sync(ALL_LANES, excess > float32(SLACK) or raised >= ex2(ceiling[0])):
            rescale(state, largest, raised, units, scale)
        base = float32(BASE) - ceiling[0]
        for column in range(columns):
            for i in range(2):
                exponent_scale = units[2 * column + i] * scale
                for j in range(2 * key_tiles):
                    at = 4 * (j // 2 * columns + column) + j % 2 * 2 + i
                    scores[at] = ex2((scores[at] - maxima[2 * column + i]) * exponent_scale + base)
                    sums[2 * column + i] += scores[at]

    @cuda.jit(device=True)
    def share_states(state, units, value_scale, shared_states, heads_left):
        """Write this warp's state to shared memory, in the units of queries and values: [warps, heads] twice, [warps, heads, head_dim].

        value_scale: of 8-bit floats.
        """
        maxima, sums, zero_sums, acc, ceiling = state
        warp_max, warp_sum, warp_out = shared_states
        warp, lane = int32(cuda.threadIdx.x // 32), int32(cuda.threadIdx.x % 32)
        power = ex2(ceiling[0] - float32(BASE))  # that this warp's weights were divided by
        for column in range(columns):
            for i in range(2):
                head = int32(8 * column + lane % 4 * 2 + i)
                total = sum_over_rows(sums[2 * column + i]) * power
                if head < heads_left and lane < 4:
                    warp_max[uint32(warp), uint32(head)] = maxima[2 * column + i] * units[2 * column + i]
                    warp_sum[uint32(warp), uint32(head)] = total
                for group in range(groups):
                    added = float32(0.0)
                    if integers:
                        added = sum_over_rows(zero_sums[2 * (group * columns + column) + i]) * power
                    for step in range(group * group_steps, group * group_steps + group_steps):
                        factor = value_scale * power
                        if integers:
                            upper = chunk_steps == 2 and step % 2 == 1
                            factor = power * float32(1 / (unit * upper_factor) if upper else 1 / unit)
                        for half in range(2):
                            number = acc[4 * (step * columns + column) + 2 * half + i] * factor + added
                            if head < heads_left:
                                warp_out[uint32(warp), uint32(head), uint32(value_channel(step, half, lane))] = number

    return clear, fold, share_states
