"""Softmax on a warp's tile of scores as tile.py leaves them: with the running maximum, and with one maximum for all.

The running maximum (online_softmax.py) rescales a state whenever a larger score comes, and needs the largest score of a tile in every
lane first: three exchanges between lanes. The unified one (Hong et al., FlashDecoding++, arXiv 2311.01282, section 3) is a constant
phi: softmax is the same whatever is subtracted from the scores, as long as exp neither overflows nor vanishes. Weights need no
exchange and states no rescaling; in return somebody has to watch that scores stay near phi (unified_maximum.py).

Scores are folded as they are, and their difference to the maximum is scaled: flash_attention_2.py says why.
"""

import functools

from numba import cuda, float32, int32, uint32

from minllm.kernels.attention.common.online_softmax import finite_or_zero
from minllm.kernels.warp import ALL_LANES
from minllm.ptx import ex2

# Exponents to base 2 up to which weights, their sums and their products with values stay far from overflow, and the smallest sum whose
# weights keep their precision. float16 holds 2**-24 to 2**16, bfloat16 about the numbers of float32.
BANDS = {"float16": (15.0, 2.0**-4), "bfloat16": (90.0, 2.0**-90)}


@cuda.jit(device=True)
def maximum_over_rows(value):
    """The largest of a column's values over the eight rows of lanes."""
    value = max(value, cuda.shfl_xor_sync(ALL_LANES, value, 4))
    value = max(value, cuda.shfl_xor_sync(ALL_LANES, value, 8))
    return max(value, cuda.shfl_xor_sync(ALL_LANES, value, 16))


@functools.cache
def make_folds(head_dim, keys, heads):
    """(fold_running, fold_unified) for tiles of `keys` keys and `heads` query heads, multiples of 16 and 8."""
    steps, columns, key_tiles = -(-head_dim // 16), heads // 8, keys // 16

    @cuda.jit(device=True)
    def fold_running(scores, maxima, sums, acc, scale):
        """Scores become weights; maxima, sums and acc follow."""
        for column in range(columns):
            for i in range(2):
                maximum = maxima[2 * column + i]
                for j in range(2 * key_tiles):
                    maximum = max(maximum, scores[4 * (j // 2 * columns + column) + j % 2 * 2 + i])
                maximum = maximum_over_rows(maximum)
                shift = finite_or_zero(maximum)
                correction = ex2((maxima[2 * column + i] - shift) * scale)
                maxima[2 * column + i] = maximum
                total = sums[2 * column + i] * correction  # of this lane's rows only
                for j in range(2 * key_tiles):
                    at = 4 * (j // 2 * columns + column) + j % 2 * 2 + i
                    scores[at] = ex2((scores[at] - shift) * scale)
                    total += scores[at]
                sums[2 * column + i] = total
                for j in range(2 * steps):
                    acc[4 * (j // 2 * columns + column) + j % 2 * 2 + i] *= correction

    @cuda.jit(device=True)
    def fold_unified(scores, maxima, sums, highest, scale):
        """Scores become weights and are added to sums; maxima stay. Returns the largest exponent to base 2 so far, `highest` before."""
        for column in range(columns):
            for i in range(2):
                for j in range(2 * key_tiles):
                    at = 4 * (j // 2 * columns + column) + j % 2 * 2 + i
                    exponent = (scores[at] - maxima[2 * column + i]) * scale
                    highest = max(highest, exponent)
                    scores[at] = ex2(exponent)
                    sums[2 * column + i] += scores[at]
        return highest

    return fold_running, fold_unified


@functools.cache
def make_guard(dtype, warps):
    """The device function left_band(warp_sum, highest, heads_left) -> int32: whether this thread knows of scores too far from phi."""
    highest_exponent, smallest_sum = BANDS[dtype]

    @cuda.jit(device=True)
    def left_band(warp_sum, highest, heads_left):
        """highest: the largest exponent that this thread has met; warp_sum [warps, heads]: the block's sums."""
        total = float32(1.0)
        if cuda.threadIdx.x < heads_left:
            total = float32(0.0)
            for warp in range(warps):
                total += warp_sum[warp, cuda.threadIdx.x]
        return int32(1) if highest > float32(highest_exponent) or total < float32(smallest_sum) else int32(0)

    return left_band


@functools.cache
def make_seed(head_dim, heads):
    """The device function seed(maxima, sums, acc, prefix, sequence, first_head, heads_left, scale, lane) for cascade.py."""
    steps, columns = -(-head_dim // 16), heads // 8

    @cuda.jit(device=True)
    def seed(maxima, sums, acc, prefix, sequence, first_head, heads_left, scale, lane):
        """Merge the states of all shares of a prefix into a warp's."""
        prefix_max, prefix_sum, prefix_out = prefix
        for share in range(prefix_max.shape[0]):
            for column in range(columns):
                for i in range(2):
                    head = int32(8 * column + lane % 4 * 2 + i)
                    if head < heads_left:
                        place = uint32(first_head + head)
                        share_maximum = prefix_max[share, uint32(sequence), place]
                        maximum = max(maxima[2 * column + i], share_maximum)
                        shift = finite_or_zero(maximum)
                        correction = ex2((maxima[2 * column + i] - shift) * scale)
                        weight = ex2((share_maximum - shift) * scale)
                        maxima[2 * column + i] = maximum
                        sums[2 * column + i] *= correction
                        if lane < 4:  # sums of the lanes of a column are added in the end
                            sums[2 * column + i] += weight * prefix_sum[share, uint32(sequence), place]
                        for j in range(2 * steps):
                            at = 4 * (j // 2 * columns + column) + j % 2 * 2 + i
                            dim = uint32(min(int32(8 * j + lane // 4), head_dim - 1))
                            acc[at] = acc[at] * correction + weight * prefix_out[share, uint32(sequence), place, dim]

    return seed
