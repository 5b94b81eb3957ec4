"""Rows of scores and of output in the registers of a warpgroup: masked, folded into a softmax, packed, stored.

wgmma leaves a [64, n] tile with its warpgroup so that a thread holds, of each 8 columns, two neighbours in row g = lane // 4 of its warp's
16 rows and two in row g + 8 ("half" 0 and 1): element 4 * block + 2 * half + i is column 8 * block + 2 * (lane % 4) + i. A row is
spread over four lanes, which take its maximum together and add their sums at the end.
"""

import functools

from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.attention.common.online_softmax import MINUS_INFINITY, finite_or_zero
from minllm.kernels.warp import ALL_LANES
from minllm.ptx import ex2, pack_bf16x2, pack_f16x2, store_128

GROWTH = 8.0  # log2 of how much a weight may exceed 1 before a row's maximum is raised
HUGE = 1024.0  # of a maximum, to base 2: from here on its rounding error would show in 16-bit weights


@functools.cache
def make_row_functions(keys, columns, dtype):
    """Device functions for a warpgroup's scores [64, keys] and output [64, columns].

    (mask_scores, subtract_origins, move_origins, raise_maxima, weigh_scores, rescale, pack_weights). maxima, sums, factors and origins
    have an element for each half; dtype is that of the 16-bit weights.
    """
    pack = pack_bf16x2 if dtype == "bfloat16" else pack_f16x2
    key_blocks, column_blocks = keys // 8, columns // 8

    @cuda.jit(device=True)
    def mask_scores(scores, first_key, row_position, sliding_window, lane):
        """Scores of keys that a row may not see become -inf; row_position is that of the thread's first row."""
        for half in range(2):  # limits count from the thread's first column, so that each comparison is with a constant
            last = int32(row_position + 8 * half - first_key - 2 * (lane % 4))
            first = int32(last - sliding_window + 1 if sliding_window > 0 else -keys)
            for block in range(key_blocks):
                for i in range(2):
                    if int32(8 * block + i) > last or int32(8 * block + i) < first:
                        scores[4 * block + 2 * half + i] = float32(MINUS_INFINITY)

    @cuda.jit(device=True)
    def highest_of(scores, half):
        """The highest score of a row, for all of its four lanes."""
        highest = float32(MINUS_INFINITY)
        for block in range(key_blocks):
            highest = max(highest, max(scores[4 * block + 2 * half], scores[4 * block + 2 * half + 1]))
        highest = max(highest, cuda.shfl_xor_sync(ALL_LANES, highest, 1))
        return max(highest, cuda.shfl_xor_sync(ALL_LANES, highest, 2))

    @cuda.jit(device=True)
    def subtract_origins(scores, origins):
        """Let scores count from their rows' origins."""
        for block in range(key_blocks):
            for i in range(4):
                scores[4 * block + i] -= origins[i // 2]

    @cuda.jit(device=True)
    def move_origins(scores, maxima, origins, scale):
        """Where a maximum is huge, it becomes its row's origin. Whether a row of the warp has one.

        scale * score - scale * maximum is one instruction, but it keeps the rounding error of the second product: at a maximum of 1e5
        a part in 300, in the sum but not in the weight, which is rounded to 16 bits. A difference of scores is exact, or nearly so.
        """
        for half in range(2):
            highest = finite_or_zero(maxima[half])
            if abs(highest * scale) > float32(HUGE):
                origins[half] += highest
                maxima[half] = float32(0.0)
                for block in range(key_blocks):
                    scores[4 * block + 2 * half] -= highest
                    scores[4 * block + 2 * half + 1] -= highest
        return cuda.any_sync(ALL_LANES, origins[0] != float32(0.0) or origins[1] != float32(0.0))

    @cuda.jit(device=True)
    def raise_maxima(scores, maxima, factors, scale):
        """Take the scores into the rows' maxima; factors: what older weights are to be multiplied by.

        A maximum is raised only where a weight would exceed 2 ** GROWTH: any number near the maximum serves as well, and as long as it
        stays, the accumulator needs no rescaling.
        """
        for half in range(2):
            highest = max(maxima[half], highest_of(scores, half))
            if highest * scale <= maxima[half] * scale + float32(GROWTH):
                highest = maxima[half]
            factors[half] = ex2((maxima[half] - finite_or_zero(highest)) * scale)
            maxima[half] = highest

    @cuda.jit(device=True)
    def weigh_scores(scores, maxima, sums, factors, scale):
        """Scores become weights 2 ** (scale * (score - maximum)); the thread's sums of weights follow."""
        for half in range(2):
            shift = finite_or_zero(maxima[half]) * scale
            total = sums[half] * factors[half]
            for block in range(key_blocks):
                left = ex2(scores[4 * block + 2 * half] * scale - shift)
                right = ex2(scores[4 * block + 2 * half + 1] * scale - shift)
                scores[4 * block + 2 * half] = left
                scores[4 * block + 2 * half + 1] = right
                total += left + right
            sums[half] = total

    @cuda.jit(device=True)
    def rescale(acc, factors):
        """Multiply the rows of the accumulator by their factors, unless those of the whole warp are 1."""
        if cuda.any_sync(ALL_LANES, factors[0] != float32(1.0) or factors[1] != float32(1.0)):
            for block in range(column_blocks):
                for i in range(4):
                    acc[4 * block + i] *= factors[i // 2]

    @cuda.jit(device=True)
    def pack_weights(scores, weights):
        """Weights as 16-bit pairs, in the order of wgmma's A operand: of each 16 keys, both halves of the left 8, then of the right."""
        for block in range(key_blocks):
            for half in range(2):
                weights[2 * block + half] = pack(scores[4 * block + 2 * half], scores[4 * block + 2 * half + 1])

    return mask_scores, subtract_origins, move_origins, raise_maxima, weigh_scores, rescale, pack_weights


@functools.cache
def make_store_row(columns, dtype):
    """store_row: write one row half of an accumulator [.., columns], 16 bytes a lane."""
    pack = pack_bf16x2 if dtype == "bfloat16" else pack_f16x2
    blocks, whole_groups = columns // 8, columns % 32 == 0

    @cuda.jit(device=True)
    def exchange(words, i, j, odd, distance):
        """Swap words[j] of the lane whose bit is clear with words[i] of the other: one step of a transpose over lanes."""
        sent = int32(words[i] if odd else words[j])
        received = uint32(cuda.shfl_xor_sync(ALL_LANES, sent, distance))
        if odd:
            words[i] = received
        else:
            words[j] = received

    @cuda.jit(device=True)
    def store_row(acc, at, half, factor, out, index, inside, lane):
        """Write acc[at:] of one half times factor, as 16-bit numbers, to the row that begins at out[index], if it is inside.

        A row's 16 bytes of each 8 columns are spread over four lanes; transposed among them, four times four words become 16 bytes a
        lane, neighbouring ones side by side: whole sectors, and no shared memory.
        """
        words = cuda.local.array(4, uint32)
        index += int64(8 * (lane % 4))
        for group in range((blocks + 3) // 4):
            for i in range(4):
                block = 4 * group + i
                if block < blocks:
                    a = at + 4 * block + 2 * half
                    words[i] = pack(acc[a] * factor, acc[a + 1] * factor)
                else:
                    words[i] = uint32(0)
            odd = lane % 2 == 1
            exchange(words, 0, 1, odd, 1)
            exchange(words, 2, 3, odd, 1)
            odd = lane // 2 % 2 == 1
            exchange(words, 0, 2, odd, 2)
            exchange(words, 1, 3, odd, 2)
            if inside and (whole_groups or 32 * group + 8 * (lane % 4) < columns):
                store_128(out, index + int64(32 * group), words[0], words[1], words[2], words[3])

    return store_row
