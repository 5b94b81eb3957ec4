"""Merges the attention outputs of ranks, each over its share of the contexts, for the heads of one of them.

    lse_r = log2 sum_j 2^(s_j) over rank r's keys          out = sum_r 2^(lse_r - M) out_r / sum_r 2^(lse_r - M),   M = max_r lse_r

This is common/merge_states.py for any number of parts, in the order of ranks, so that a result does not depend on the rank that merges. A
rank's outputs and log-sum-exps of all heads are one array, `StateArrays`, because an all-gather of one array takes less time than of two.

FLOPs: 3 per element and rank. Bytes: itemsize per element and rank, 4 per log-sum-exp; only the rank's own heads are read. Threads to data:
16 bytes of the output per thread.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int64, uint32
from numpy.typing import DTypeLike

from minllm.kernels.arguments import FLOAT_DTYPES, ceil_div, check_array
from minllm.kernels.attention.common.online_softmax import MINUS_INFINITY, finite_or_zero, reciprocal_or_zero
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.vector import VECTOR_BYTES, vector_access
from minllm.ptx import ex2
from minllm.runtime.array_protocol import Array
from minllm.runtime.kernel import check, kernel, launch

BLOCK = 128
WORD_BYTES = 4


class StateArrays(NamedTuple):
    """A rank's outputs and log-sum-exps in one array of words, in which `out` and `lse` are views."""

    words: Array  # float32 [words]
    out: Array  # [tokens, heads, head_dim]
    lse: Array  # float32 [tokens, heads], to base 2

    @classmethod
    def allocate(cls, empty: Callable, tokens: int, heads: int, head_dim: int, dtype: DTypeLike) -> "StateArrays":
        """Uninitialised arrays. empty: empty(shape, dtype), a multiple of 16 bytes long, so that each rank's outputs are aligned."""
        numbers, rows = tokens * heads * head_dim, tokens * heads
        lse_at = numbers * np.dtype(dtype).itemsize // WORD_BYTES
        words: Any = empty((ceil_div(lse_at + rows, VECTOR_BYTES // WORD_BYTES) * (VECTOR_BYTES // WORD_BYTES),), np.dtype(np.float32))
        out = words[:lse_at].view(np.dtype(dtype)).reshape(tokens, heads, head_dim)
        return cls(words, out, words[lse_at : lse_at + rows].reshape(tokens, heads))


def merge_ranks_reference(outs, lses):
    """The merged output, float64 [tokens, heads, head_dim], of outs [ranks, tokens, heads, head_dim] and lses [ranks, tokens, heads]."""
    lses = lses.astype(np.float64)
    maximum = lses.max(axis=0)
    weights = np.exp2(lses - np.where(np.isneginf(maximum), 0, maximum))
    total = weights.sum(axis=0)
    return (weights[..., None] * outs).sum(axis=0) / np.where(total == 0, 1, total)[..., None]


@functools.cache
def make_kernel(dtype, head_dim, ranks):
    """The kernel for `ranks` ranks; head_dim is a whole number of vectors."""
    width, load, store = vector_access(dtype)
    vectors, words_of_head = head_dim // width, head_dim * dtype.itemsize // WORD_BYTES

    @kernel(dependent_launch=True)
    def merge_ranks_kernel(outs, lses, out, first_head, all_heads):
        # outs: [ranks, numbers], lses: float32 [ranks, words], views of the gathered words; out: [tokens, heads, head_dim]
        wait_for_predecessors()
        tokens, heads = out.shape[0], out.shape[1]
        vector = uint32(cuda.blockIdx.x * BLOCK + cuda.threadIdx.x)
        row = vector // uint32(vectors)  # one per token and head
        token = uint32(row // uint32(heads))
        if token >= tokens:
            return
        place = int64(token) * all_heads + first_head + (row - token * heads)  # the row's place among those of all heads
        numbers, acc = cuda.local.array(width, float32), cuda.local.array(width, float32)
        lse_at, at = int64(tokens) * all_heads * words_of_head + place, place * head_dim + (vector - row * uint32(vectors)) * width
        maximum, total = float32(MINUS_INFINITY), float32(0.0)
        for rank in range(ranks):
            maximum = max(maximum, lses[rank, lse_at])
        shift = finite_or_zero(maximum)
        for i in range(width):
            acc[i] = float32(0.0)
        for rank in range(ranks):
            weight = ex2(lses[rank, lse_at] - shift)
            total += weight
            load(outs, int64(rank) * outs.shape[1] + at, numbers, 0)
            for i in range(width):
                acc[i] += weight * numbers[i]
        inverse = reciprocal_or_zero(total)
        for i in range(width):
            acc[i] *= inverse
        store(out, int64(vector) * width, acc, 0)

    return merge_ranks_kernel


def merge_ranks(gathered, rank, out, stream=None):
    """Write the merged output of rank's heads into `out` [tokens, heads, head_dim].

    gathered: float32 [ranks, words], the words of every rank's StateArrays, of ranks * heads heads. Raises KernelArgumentError for other
    shapes and dtypes.
    """
    check_array("gathered", gathered, FLOAT_DTYPES[:1], ranks=None, words=None)
    check_array("out", out, FLOAT_DTYPES, tokens=None, heads=None, head_dim=None)
    (ranks, words), (tokens, heads, head_dim), dtype = gathered.shape, out.shape, np.dtype(out.dtype)
    width = vector_access(dtype)[0]
    check(head_dim % width == 0, f"head_dim is {head_dim}; it must be a multiple of {width}")
    rows = tokens * heads * ranks
    needed = ceil_div(rows * (head_dim * dtype.itemsize + WORD_BYTES), VECTOR_BYTES) * VECTOR_BYTES // WORD_BYTES
    check(words == needed and 0 <= rank < ranks, f"gathered is {list(gathered.shape)} for rank {rank}; it must be [ranks, {needed}]")
    threads = tokens * heads * head_dim // width
    arguments = gathered.view(dtype), gathered, out, rank * heads, ranks * heads
    launch(make_kernel(dtype, head_dim, ranks), ceil_div(threads, BLOCK), BLOCK, arguments, stream)
