"""The algebra of attention states, on which every attention kernel except the first is based.

Attention over a set of keys leaves a state (m, l, o): m the largest score, l = sum exp(s_j - m), o = sum exp(s_j - m) v_j. The states
of two disjoint sets merge into the state of their union,

    m = max(m1, m2)     l = l1 exp(m1 - m) + l2 exp(m2 - m)     o = o1 exp(m1 - m) + o2 exp(m2 - m)

and o / l is the output of attention. The merge is associative and commutative, and (-inf, 0, 0), the state of no keys, is its identity
(Milakov and Gimelshein, arXiv 1805.02867, section 3.1; Ye et al., FlashInfer, arXiv 2501.01005, section 2.2). So keys may be processed in
tiles (FlashAttention), by different blocks (Flash-Decoding) or by different GPUs, in any order.

Kernels hold scores to base 2: their m is log2(e) times the one above, and exp becomes 2 ** x, for which the GPU has an instruction.
Merging finished outputs takes one more number per row, the log-sum-exp m + log l, also to base 2 (merge_states.py).
"""

import math

import numpy as np
from numba import cuda, float32

from minllm.ptx import rcp

MINUS_INFINITY = -math.inf


def merge_reference(first, second):
    """The merge of two states (m [...], l [...], o [..., head_dim]) to base e, in NumPy."""
    # exercise: attention.merge_states
    maximum = np.maximum(first[0], second[0])
    shift = np.where(np.isneginf(maximum), 0, maximum)  # two empty states would give -inf - -inf, which is NaN
    weight1, weight2 = np.exp(first[0] - shift), np.exp(second[0] - shift)
    return (
        maximum,
        first[1] * weight1 + second[1] * weight2,
        first[2] * weight1[..., None] + second[2] * weight2[..., None],
    )
    # end exercise


def state_reference(scores, values):
    """The state of a set of keys from scores [..., keys] and values [keys, head_dim], in NumPy."""
    maximum = np.max(scores, axis=-1, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isneginf(maximum), 0, maximum)[..., None])
    return maximum, weights.sum(axis=-1), weights @ values


@cuda.jit(device=True)
def finite_or_zero(maximum):
    """The number to subtract from scores: the maximum, but 0 while it is -inf, so that a row without keys gets weights 0 and not NaN."""
    return float32(0.0) if maximum == float32(MINUS_INFINITY) else maximum


@cuda.jit(device=True)
def reciprocal_or_zero(total):
    """1 / total, but 0 if total is 0, so that the output of a row without keys is 0."""
    return rcp(total) if total > float32(0.0) else float32(0.0)


@cuda.jit(device=True)
def log_sum_exp(maximum, total, scale):
    """log2 of sum_j 2 ** (scale * s_j), from the largest score and total = sum_j 2 ** (scale * (s_j - maximum)); -inf for no keys."""
    return maximum * scale + math.log2(total) if total > float32(0.0) else float32(MINUS_INFINITY)
