"""Fold the states of a row's splits, from the first to the last, into its output: the same operations wherever it is done.

    m' = max(m, m_s)     l' = l 2^(m - m') + l_s 2^(m_s - m')     o' = o 2^(m - m') + o_s 2^(m_s - m')     out = o / l

A prompt's block does so in shared memory after each split (kernel.py), and the kernel below does it for splits of different blocks. Both
round alike: the product with the state so far is rounded, and an FMA adds the split's. So a row has the same bits on either way.

FLOPs: 3 * head_dim per state. Bytes: 4 * (head_dim + 2) per state, read once. How threads map to data: a warp per row and head, four
neighbouring numbers per lane, and the loads of SPLITS_AT_ONCE splits in flight together.
"""

import functools

from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.attention.common.online_softmax import MINUS_INFINITY, finite_or_zero, reciprocal_or_zero
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.vector import load_words
from minllm.ptx import ex2, uint_as_float
from minllm.runtime.kernel import kernel
from minllm.tiles.warp import WARP

SPLIT_KEYS = 256  # keys of a split, which begins at a multiple of them
SPLITS_AT_ONCE = 8
MERGE_WARPS = 4


@cuda.jit(device=True)
def fold_weights(maximum, split_maximum, scale):
    """(m', 2^(m - m'), 2^(m_s - m')) of unscaled maxima m and m_s."""
    merged = max(maximum, split_maximum)
    shift = finite_or_zero(merged)
    return merged, ex2((maximum - shift) * scale), ex2((split_maximum - shift) * scale)


@cuda.jit(device=True)
def folded(number, weight, split_number, split_weight):
    """number * weight + split_number * split_weight, in this rounding."""
    return cuda.fma(split_number, split_weight, number * weight)


@cuda.jit(device=True)
def splits_of(start, stop):
    """(first split, one past the last) that hold keys from start to stop."""
    return int32(uint32(start) // uint32(SPLIT_KEYS)), int32(uint32(max(start, stop) + SPLIT_KEYS - 1) // uint32(SPLIT_KEYS))


@functools.cache
def make_merge_kernel(head_dim):
    """The kernel for rows of head_dim numbers, a multiple of 8."""
    vectors_each = -(-head_dim // (4 * WARP))  # of four numbers, per lane
    dims_each = 4 * vectors_each
    count = SPLITS_AT_ONCE * dims_each  # numbers on their way to a lane

    @cuda.jit(device=True)
    def first_dim(vector, lane):
        return int32(4 * (lane + WARP * vector))

    @kernel(dependent_launch=True)
    def merge_splits_kernel(
        split_max,  # [tokens, heads, splits]
        split_sum,  # the same
        split_out,  # [tokens, heads, splits, head_dim]
        out,  # [tokens, heads, head_dim]
        query_start,  # [sequences + 1]
        context_lens,  # [sequences]
        scale,  # times log2(e): exponentials are to base 2
        sliding_window,
    ):
        wait_for_predecessors()
        sequence, heads = cuda.blockIdx.y, uint32(out.shape[1])
        lane, pair = cuda.threadIdx.x % WARP, uint32(cuda.blockIdx.x * MERGE_WARPS + cuda.threadIdx.x // WARP)
        row = int32(pair // heads)
        head, token, rows = int32(pair - row * heads), query_start[sequence] + row, query_start[sequence + 1] - query_start[sequence]
        if row >= rows:
            return
        stop = int32(max(0, context_lens[sequence] - rows + row + 1))
        start = int32(max(0, stop - sliding_window)) if sliding_window > 0 else int32(0)
        split, last = splits_of(start, stop)
        maximum, total = float32(MINUS_INFINITY), float32(0.0)
        acc, words = cuda.local.array(dims_each, float32), cuda.local.array(count, uint32)
        maxima, sums = cuda.local.array(SPLITS_AT_ONCE, float32), cuda.local.array(SPLITS_AT_ONCE, float32)
        for i in range(dims_each):
            acc[i] = float32(0.0)
        while split < last:
            for j in range(SPLITS_AT_ONCE):
                at = min(int32(split + j), int32(last - 1))
                maxima[j], sums[j] = split_max[token, head, at], split_sum[token, head, at]
                state = (int64(token * heads + head) * split_max.shape[2] + at) * head_dim
                for vector in range(vectors_each):
                    dim = min(first_dim(vector, lane), head_dim - 4)
                    load_words(split_out, state + dim, words, j * dims_each + 4 * vector)
            for j in range(SPLITS_AT_ONCE):
                if split + j < last:
                    maximum, weight, split_weight = fold_weights(maximum, maxima[j], scale)
                    total = folded(total, weight, sums[j], split_weight)
                    for i in range(dims_each):
                        acc[i] = folded(acc[i], weight, uint_as_float(words[j * dims_each + i]), split_weight)
            split = int32(split + SPLITS_AT_ONCE)
        inverse = reciprocal_or_zero(total)
        for i in range(dims_each):
            dim = first_dim(i // 4, lane) + i % 4
            if dim < head_dim:
                out[token, head, dim] = acc[i] * inverse

    return merge_splits_kernel
