"""The second kernel of Flash-Decoding: merges the states of a context's splits (split_kv.py).

    M = max_s m_s          out = sum_s 2^(m_s - M) o_s / sum_s 2^(m_s - M) l_s          (online_softmax.py, for any number of states)

FLOPs: 2 * head_dim per state. Bytes: 4 * (head_dim + 2) per non-empty state, read once (its maximum again by every warp, from
L2). Threads to data: one block per query head and sequence. Each warp computes M itself, one lane per split; then warp w adds up the
weighted outputs of splits w, w + WARPS, ..., with its lanes along head_dim; the warps' sums are added through shared memory.
"""

import functools

from numba import cuda, float32

from minllm.kernels.attention.common.online_softmax import MINUS_INFINITY, finite_or_zero, reciprocal_or_zero
from minllm.ptx import ex2
from minllm.runtime.kernel import kernel
from minllm.tiles.warp import ALL_LANES, WARP

MERGE_WARPS = 4


@cuda.jit(device=True)
def share_of_split(split, splits, context_len, sliding_window, step):
    """(first key, one past the last) of a split: equal shares of the visible keys, rounded up to `step`; the last may be shorter."""
    first_visible = max(0, context_len - sliding_window) if sliding_window > 0 else 0
    # exercise: attention.share_of_split
    share = (context_len - first_visible + splits - 1) // splits
    share = (share + step - 1) // step * step
    start = first_visible + split * share
    return start, min(start + share, context_len)
    # end exercise


@functools.cache
def make_merge_kernel(head_dim, warps=MERGE_WARPS):
    """(kernel, threads per block)."""
    dims_each = -(-head_dim // WARP)
    threads = WARP * warps
    out_shape = (warps, head_dim)

    @kernel
    def merge_kernel(
        split_max,  # [sequences, heads, splits]
        split_sum,  # the same
        split_out,  # [sequences, heads, splits, head_dim]
        out,  # [tokens, heads, head_dim]
        query_start,  # [sequences + 1]
        context_lens,  # [sequences]
        sliding_window,
        step,  # each split's share is a multiple of this many keys
    ):
        head, sequence = cuda.blockIdx.x, cuda.blockIdx.y
        row = query_start[sequence]
        if query_start[sequence + 1] == row:
            return  # a sequence without a new token
        thread = cuda.threadIdx.x
        warp, lane = thread // WARP, thread % WARP
        splits = split_max.shape[2]
        context_len = context_lens[sequence]
        first_start, first_stop = share_of_split(0, splits, context_len, sliding_window, step)
        used = 0  # the first `used` splits hold keys
        if first_stop > first_start:
            used = min(splits, (context_len - first_start + first_stop - first_start - 1) // (first_stop - first_start))

        maximum = float32(MINUS_INFINITY)
        split = lane
        while split < used:
            maximum = max(maximum, split_max[sequence, head, split])
            split += WARP
        for distance in (16, 8, 4, 2, 1):
            maximum = max(maximum, cuda.shfl_xor_sync(ALL_LANES, maximum, distance))
        shift = finite_or_zero(maximum)

        acc = cuda.local.array(dims_each, float32)
        for i in range(dims_each):
            acc[i] = float32(0.0)
        total = float32(0.0)
        split = warp
        # exercise: attention.split_merge
        while split < used:
            weight = ex2(split_max[sequence, head, split] - shift)
            total += weight * split_sum[sequence, head, split]
            for i in range(dims_each):
                dim = lane + WARP * i
                if dim < head_dim:
                    acc[i] += weight * split_out[sequence, head, split, dim]
            split += warps
        # end exercise

        warp_total = cuda.shared.array(warps, float32)
        warp_out = cuda.shared.array(out_shape, float32)
        if lane == 0:
            warp_total[warp] = total
        for i in range(dims_each):
            dim = lane + WARP * i
            if dim < head_dim:
                warp_out[warp, dim] = acc[i]
        cuda.syncthreads()
        dim = thread
        while dim < head_dim:
            total = float32(0.0)
            result = float32(0.0)
            for w in range(warps):
                total += warp_total[w]
                result += warp_out[w, dim]
            out[row, head, dim] = result * reciprocal_or_zero(total)
            dim += threads

    return merge_kernel, threads
