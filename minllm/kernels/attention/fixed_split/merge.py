"""Folds the states of a row's splits, in order, into its output, with the same operations in both kernels.

    m' = max(m, m_s)     l' = l 2^(m - m') + l_s 2^(m_s - m')     o' = o 2^(m - m') + o_s 2^(m_s - m')     out = o / l

A block that processes all keys of its rows folds after each split (kernel.py); the kernel below folds splits of different blocks. Both
round in the same way: the state so far times its factor is rounded, and an FMA adds the split's. So a row has the same bits either way.

FLOPs: 3 * head_dim per state. Bytes: 4 * (head_dim + 2) per state, read once. Threads to data: one block per row and head, one element of
the output per thread. A warp loads the states of 32 splits together, one maximum and sum per lane, and a scan over its lanes finds the
running maximum before each split: so the exponentials of 32 splits are computed at once, and only two FMAs per split remain sequential.
"""

import functools

from numba import cuda, float32, int32, uint32

from minllm.kernels.attention.common.online_softmax import MINUS_INFINITY, finite_or_zero, reciprocal_or_zero
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.ptx import ex2
from minllm.runtime.kernel import kernel
from minllm.tiles.warp import ALL_LANES, WARP

SPLIT_KEYS = 64  # keys per split; splits begin at multiples of it


@cuda.jit(device=True)
def fold_weights(maximum, split_maximum, scale):
    """(m', 2^(m - m'), 2^(m_s - m')) from unscaled maxima m and m_s."""
    merged = max(maximum, split_maximum)
    shift = finite_or_zero(merged)
    return merged, ex2((maximum - shift) * scale), ex2((split_maximum - shift) * scale)


@cuda.jit(device=True)
def folded(number, weight, split_number, split_weight):
    """number * weight + split_number * split_weight, with the first product rounded and the second added by an FMA."""
    return cuda.fma(split_number, split_weight, number * weight)


@cuda.jit(device=True)
def keys_of(first_position, last_position, sliding_window):
    """(first key that the row at first_position sees, one past the last of the row at last_position); empty for negative positions."""
    start = int32(max(0, first_position - sliding_window + 1)) if sliding_window > 0 else int32(0)
    return start, int32(max(start, last_position + 1))


@cuda.jit(device=True)
def splits_of(start, stop):
    """(first, one past the last) of the splits with keys from start to stop."""
    return int32(uint32(start) // uint32(SPLIT_KEYS)), int32(uint32(stop + SPLIT_KEYS - 1) // uint32(SPLIT_KEYS))


@cuda.jit(device=True)
def maximum_before(value, first, lane):
    """The largest of `first` and the values of the lanes before this one, by a scan; a maximum is exact in any order."""
    largest = cuda.shfl_up_sync(ALL_LANES, value, 1)
    largest = first if lane == 0 else max(largest, first)
    for step in (1, 2, 4, 8, 16):
        other = cuda.shfl_up_sync(ALL_LANES, largest, step)
        largest = max(largest, other) if lane >= step else largest
    return largest


@functools.cache
def make_merge_kernel(head_dim):
    """(kernel, threads per block) for rows of head_dim elements."""
    threads = -(-head_dim // 32) * 32

    @kernel(dependent_launch=True)
    def merge_splits_kernel(
        split_max,  # [tokens, heads, splits]
        split_sum,  # the same
        split_out,  # [tokens, heads, splits, head_dim]
        out,  # [tokens, heads, head_dim]
        query_start,  # [sequences + 1]
        context_lens,  # [sequences]
        scale,  # includes log2(e): exponentials are base 2
        sliding_window,
    ):
        wait_for_predecessors()
        head, row, sequence, lane = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z, int32(cuda.threadIdx.x % WARP)
        token, rows = query_start[sequence] + row, query_start[sequence + 1] - query_start[sequence]
        if row >= rows:
            return
        position = int32(context_lens[sequence] - rows + row)
        start, stop = keys_of(position, position, sliding_window)
        number, last = splits_of(start, stop)
        dim = min(int32(cuda.threadIdx.x), int32(head_dim - 1))
        maximum, total, acc = float32(MINUS_INFINITY), float32(0.0), float32(0.0)
        outs = cuda.local.array(WARP, float32)
        while number < last:
            mine = min(int32(number + lane), int32(last - 1))  # repeating the last split does not change the maximum
            split_maximum, sums = split_max[token, head, mine], split_sum[token, head, mine]
            for i in range(WARP):
                outs[i] = split_out[token, head, min(int32(number + i), int32(last - 1)), dim]
            before = maximum_before(split_maximum, maximum, lane)
            merged, weight, split_weight = fold_weights(before, split_maximum, scale)
            for i in range(WARP):
                if number + i < last:
                    old, new = cuda.shfl_sync(ALL_LANES, weight, i), cuda.shfl_sync(ALL_LANES, split_weight, i)
                    total = folded(total, old, cuda.shfl_sync(ALL_LANES, sums, i), new)
                    acc = folded(acc, old, outs[i], new)
            maximum = cuda.shfl_sync(ALL_LANES, merged, WARP - 1)
            number = int32(number + WARP)
        if cuda.threadIdx.x < head_dim:
            out[token, head, dim] = acc * reciprocal_or_zero(total)

    return merge_splits_kernel, threads
