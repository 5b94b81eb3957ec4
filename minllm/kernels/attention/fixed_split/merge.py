"""Fold the states of a row's splits, from the first to the last, into its output: the same operations wherever it is done.

    m' = max(m, m_s)     l' = l 2^(m - m') + l_s 2^(m_s - m')     o' = o 2^(m - m') + o_s 2^(m_s - m')     out = o / l

A block that walks over all keys of its rows does so after each split (kernel.py), and the kernel below does it for splits of different
blocks. Both round alike: the product with the state so far is rounded, and an FMA adds the split's. So a row has the same bits on
either way.

FLOPs: 3 * head_dim per state. Bytes: 4 * (head_dim + 2) per state, read once. How threads map to data: a block per row and head, one number
of the output per thread, and the loads of SPLITS_AT_ONCE splits in flight together.
"""

import functools

from numba import cuda, float32, int32, uint32

from minllm.kernels.attention.common.online_softmax import MINUS_INFINITY, finite_or_zero, reciprocal_or_zero
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.ptx import ex2
from minllm.runtime.kernel import kernel

SPLIT_KEYS = 64  # keys of a split, which begins at a multiple of them
SPLITS_AT_ONCE = 16


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
def keys_of(first_position, last_position, sliding_window):
    """(first key that the row at first_position sees, one past that of the row at last_position); none where positions are negative."""
    start = int32(max(0, first_position - sliding_window + 1)) if sliding_window > 0 else int32(0)
    return start, int32(max(start, last_position + 1))


@cuda.jit(device=True)
def splits_of(start, stop):
    """(first split, one past the last) that hold keys from start to stop."""
    return int32(uint32(start) // uint32(SPLIT_KEYS)), int32(uint32(stop + SPLIT_KEYS - 1) // uint32(SPLIT_KEYS))


@functools.cache
def make_merge_kernel(head_dim):
    """(kernel, threads) for rows of head_dim numbers."""
    threads = -(-head_dim // 32) * 32

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
        head, row, sequence = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        token, rows = query_start[sequence] + row, query_start[sequence + 1] - query_start[sequence]
        if row >= rows:
            return
        position = int32(context_lens[sequence] - rows + row)
        start, stop = keys_of(position, position, sliding_window)
        number, last = splits_of(start, stop)
        dim = min(int32(cuda.threadIdx.x), int32(head_dim - 1))
        maximum, total, acc = float32(MINUS_INFINITY), float32(0.0), float32(0.0)
        maxima, sums = cuda.local.array(SPLITS_AT_ONCE, float32), cuda.local.array(SPLITS_AT_ONCE, float32)
        outs = cuda.local.array(SPLITS_AT_ONCE, float32)
        while number < last:
            for i in range(SPLITS_AT_ONCE):
                at = min(int32(number + i), int32(last - 1))
                maxima[i], sums[i], outs[i] = split_max[token, head, at], split_sum[token, head, at], split_out[token, head, at, dim]
            for i in range(SPLITS_AT_ONCE):
                if number + i < last:
                    maximum, weight, split_weight = fold_weights(maximum, maxima[i], scale)
                    total = folded(total, weight, sums[i], split_weight)
                    acc = folded(acc, weight, outs[i], split_weight)
            number = int32(number + SPLITS_AT_ONCE)
        if cuda.threadIdx.x < head_dim:
            out[token, head, dim] = acc * reciprocal_or_zero(total)

    return merge_splits_kernel, threads
