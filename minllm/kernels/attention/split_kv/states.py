"""Merges the states (m, l, o) of split_kv.py, from subgroups to warps to a block's share of a context.

The merge is that of online_softmax.py. Every subgroup of a warp has its own state, so that the loop over keys needs no exchange between
them. At the end the subgroups of a warp are merged by shuffles, and the warps of a block through shared memory. The output is not yet
divided by the sum: merge.py does that.
"""

import functools

from numba import cuda, float32

from minllm.kernels.attention.common.online_softmax import MINUS_INFINITY, finite_or_zero
from minllm.kernels.vector import store_4_float32
from minllm.ptx import ex2
from minllm.tiles.warp import ALL_LANES, WARP


@functools.cache
def make_states(shape):
    """The device functions (clear, merge_subgroups, share_state, merge_warps)."""
    heads_here, numbers_each, lanes, warps, head_dim = shape.heads, shape.numbers_each, shape.lanes, shape.warps, shape.head_dim
    elements, chunks, chunks_each, threads = shape.elements, shape.chunks, shape.chunks_each, WARP * shape.warps

    @cuda.jit(device=True)
    def clear(maxima, sums, acc):
        """Set the state of every head to that of no keys."""
        for i in range(heads_here * numbers_each):
            acc[i] = float32(0.0)
        for head in range(heads_here):
            maxima[head] = float32(MINUS_INFINITY)
            sums[head] = float32(0.0)

    @cuda.jit(device=True)
    def merge_subgroups(maxima, sums, acc):
        """Merge the states of the warp's subgroups; afterwards every subgroup holds the result."""
        for head in range(heads_here):
            maximum = maxima[head]
            distance = lanes
            while distance < WARP:
                maximum = max(maximum, cuda.shfl_xor_sync(ALL_LANES, maximum, distance))
                distance *= 2
            correction = ex2(maxima[head] - finite_or_zero(maximum))
            maxima[head] = maximum
            sums[head] *= correction
            for i in range(numbers_each):
                acc[head * numbers_each + i] *= correction
            distance = lanes
            while distance < WARP:
                sums[head] += cuda.shfl_xor_sync(ALL_LANES, sums[head], distance)
                for i in range(numbers_each):
                    acc[head * numbers_each + i] += cuda.shfl_xor_sync(ALL_LANES, acc[head * numbers_each + i], distance)
                distance *= 2

    @cuda.jit(device=True)
    def share_state(maxima, sums, acc, warp_states, warp, lane):
        """Store a warp's state in shared memory; its first subgroup writes."""
        warp_max, warp_sum, warp_out = warp_states
        if lane < lanes:
            for head in range(heads_here):
                for chunk_index in range(chunks_each):
                    chunk = lane + lanes * chunk_index
                    if chunk < chunks:
                        place = (warp * heads_here + head) * head_dim + chunk * elements
                        for i in range(0, elements, 4):
                            store_4_float32(warp_out, place + i, acc, head * numbers_each + chunk_index * elements + i)
                if lane == 0:
                    warp_max[warp * heads_here + head] = maxima[head]
                    warp_sum[warp * heads_here + head] = sums[head]

    @cuda.jit(device=True)
    def merge_warps(warp_states, split_states, sequence, first_head, heads_left, split):
        """Merge the warps' states, and write the split's state to memory."""
        warp_max, warp_sum, warp_out = warp_states
        split_max, split_sum, split_out = split_states
        i = cuda.threadIdx.x
        while i < heads_left * head_dim:
            head, dim = i // head_dim, i % head_dim
            maximum = float32(MINUS_INFINITY)
            for w in range(warps):
                maximum = max(maximum, warp_max[w * heads_here + head])
            total, out = float32(0.0), float32(0.0)
            for w in range(warps):
                weight = ex2(warp_max[w * heads_here + head] - maximum)
                total += weight * warp_sum[w * heads_here + head]
                out += weight * warp_out[w, head, dim]
            split_out[sequence, first_head + head, split, dim] = out
            if dim == 0:
                split_max[sequence, first_head + head, split] = maximum
                split_sum[sequence, first_head + head, split] = total
            i += threads

    return clear, merge_subgroups, share_state, merge_warps
