"""The attention states of a block's warps, which meet in shared memory.

M = max_w m_w          l = sum_w exp(m_w - M) l_w          o = sum_w exp(m_w - M) o_w          (online_softmax.py, for all warps w)
"""

import functools
from typing import NamedTuple

from numba import cuda, float32, uint32

from minllm.kernels.attention.common.online_softmax import MINUS_INFINITY, finite_or_zero
from minllm.ptx import ex2
from minllm.runtime.array_protocol import Array

VECTOR = 4  # float32 numbers in 16 bytes, which a thread merges at a time


class WarpStates(NamedTuple):
    """The states of a block's warps in shared memory."""

    maxima: Array  # [warps, heads]
    sums: Array  # [warps, heads]
    outs: Array  # [warps, heads, head_dim]


def pitch_of(head_dim):
    """float32 numbers from one head's output to the next in shared memory: lanes of four heads and eight dims fall into different banks."""
    return -(-head_dim // 32) * 32 + 4


@functools.cache
def make_warp_merge(warps):
    """merge_warps(states, head, dim, scale, results) -> (maximum, sum) of a head over all warps; results: VECTOR elements of its output."""

    @cuda.jit(device=True)
    def merge_warps(states, head, dim, scale, results):
        maximum = float32(MINUS_INFINITY)
        for w in range(warps):
            maximum = max(maximum, states.maxima[w, head])
        shift = finite_or_zero(maximum)
        total = float32(0.0)
        for j in range(VECTOR):
            results[j] = float32(0.0)
        for w in range(warps):
            weight = ex2((states.maxima[w, head] - shift) * scale)
            total += weight * states.sums[w, head]
            for j in range(VECTOR):
                results[j] += weight * states.outs[w, head, uint32(dim + j)]
        return maximum, total

    return merge_warps
