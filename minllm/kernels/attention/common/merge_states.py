"""Merges two attention outputs, each over a part of a row's keys and with its log-sum-exp, into one.

    lse_i = log2 sum_j 2^(s_j) over part i          w_i = 2^lse_i          out = (w_1 out_1 + w_2 out_2) / (w_1 + w_2)

This is the merge of states of online_softmax.py for outputs that are already divided by their sums: m + log2 l is all that is needed of a
part besides its output (Ye et al., "Cascade Inference", FlashInfer 2024). A part without keys has lse -inf and weight 0; if both parts are
empty, the output is zeros.

Outputs are 16-bit numbers and are rounded again, so errors are at most twice those of one kernel. lse is float32: its own rounding becomes
visible at scores beyond 2**15 (to base 2).

FLOPs: 3 per element. Bytes: 3 * itemsize per element, and 4 per lse of each row and head. Threads to data: 16 bytes per thread.
"""

import functools

import numpy as np
from numba import cuda, float32, int64, uint32

from minllm.kernels.arguments import FLOAT_DTYPES, ceil_div, check_array
from minllm.kernels.attention.common.online_softmax import finite_or_zero, reciprocal_or_zero
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.matmul.arguments import HALF_DTYPES
from minllm.kernels.vector import vector_access
from minllm.ptx import ex2
from minllm.runtime.kernel import kernel, launch

BLOCK = 128


def merge_states_reference(first, first_lse, second, second_lse):
    """The output over both parts, float64 [tokens, heads, head_dim]; lse [tokens, heads] to base 2."""
    both = np.stack([first_lse, second_lse]).astype(np.float64)
    maximum = both.max(axis=0)
    weights = np.exp2(both - np.where(np.isneginf(maximum), 0, maximum))
    total = weights.sum(axis=0)
    weights = (weights / np.where(total == 0, 1, total))[..., None]
    return weights[0] * first.astype(np.float64) + weights[1] * second.astype(np.float64)


@functools.cache
def make_kernel(dtype, head_dim):
    """The kernel for 16-bit `dtype` and head_dim, a multiple of 8."""
    width, load, store = vector_access(dtype)
    vectors = head_dim // width  # vectors per head

    @kernel(dependent_launch=True)
    def merge_states_kernel(
        first,  # [tokens, heads, head_dim]
        first_lse,  # [tokens, heads]
        second,  # the same shape
        second_lse,
        out,  # [tokens, heads, head_dim]; may be first or second
        query_start,  # [sequences + 1]: rows of no sequence are not written
    ):
        wait_for_predecessors()
        heads = first.shape[1]
        vector = uint32(cuda.blockIdx.x * BLOCK + cuda.threadIdx.x)
        row = vector // uint32(vectors)  # one per token and head
        token = uint32(row // uint32(heads))
        head = uint32(row - token * heads)
        if token >= query_start[query_start.shape[0] - 1]:
            return
        numbers, others = cuda.local.array(width, float32), cuda.local.array(width, float32)
        at = int64(vector) * width
        load(first, at, numbers, 0)
        load(second, at, others, 0)
        lse, other_lse = first_lse[token, head], second_lse[token, head]
        shift = finite_or_zero(max(lse, other_lse))
        weight, other_weight = ex2(lse - shift), ex2(other_lse - shift)
        inverse = reciprocal_or_zero(weight + other_weight)
        weight, other_weight = weight * inverse, other_weight * inverse
        for i in range(width):
            numbers[i] = weight * numbers[i] + other_weight * others[i]
        store(out, at, numbers, 0)

    return merge_states_kernel


def merge_states(first, first_lse, second, second_lse, out, query_start, stream=None):
    """Write the output over both parts into `out` [tokens, heads, head_dim], which may be `first` or `second`.

    first, second: the outputs over the two parts, float16 or bfloat16; first_lse, second_lse: float32 [tokens, heads], to base 2.
    query_start: int32 [B + 1]. Raises KernelArgumentError for other shapes and dtypes.
    """
    check_array("out", out, HALF_DTYPES, tokens=None, heads=None, head_dim=None)
    tokens, heads, head_dim = out.shape
    for name, array in (("first", first), ("second", second)):
        check_array(name, array, (out.dtype,), tokens=tokens, heads=heads, head_dim=head_dim)
    for name, array in (("first_lse", first_lse), ("second_lse", second_lse)):
        check_array(name, array, FLOAT_DTYPES[:1], tokens=tokens, heads=heads)
    chosen = make_kernel(np.dtype(out.dtype), head_dim)
    threads = tokens * heads * head_dim // vector_access(out.dtype)[0]
    launch(chosen, ceil_div(threads, BLOCK), BLOCK, (first, first_lse, second, second_lse, out, query_start), stream)
