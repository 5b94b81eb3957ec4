"""Joins the logits of all ranks to rows, from the parts that an all-gather has stored one after another.

    out[row, r * size + i] = parts[r, row, i]      for r * size + i < vocab: the last parts may be padded

Bytes: 8 per logit, no arithmetic; a single row is already complete in the gathered parts, except for the padding at its end. Threads to
data: a thread copies PER_THREAD elements of one part of one row.
"""

import numpy as np
from numba import cuda

from minllm.kernels.arguments import ceil_div, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.runtime.kernel import check, kernel, launch

BLOCK, PER_THREAD = 256, 8


def join_parts_reference(parts, vocab):
    """Logits float32 [R, vocab] from parts float32 [ranks, R, size]."""
    return np.ascontiguousarray(parts.transpose(1, 0, 2).reshape(parts.shape[1], -1)[:, :vocab])


@kernel(dependent_launch=True)
def join_parts_kernel(parts, out):
    """parts float32 [ranks, R, size]; out float32 [R, vocab]. Grid: (pieces of a part, rows, ranks)."""
    wait_for_predecessors()
    row, rank, size = cuda.blockIdx.y, cuda.blockIdx.z, parts.shape[2]
    first = cuda.blockIdx.x * (BLOCK * PER_THREAD) + cuda.threadIdx.x
    for step in range(PER_THREAD):
        i = first + step * BLOCK
        if i < size and rank * size + i < out.shape[1]:
            out[row, rank * size + i] = parts[rank, row, i]


def join_parts(parts, out, stream=None):
    """Write the logits of all ranks to out float32 [R, vocab]; parts float32 [ranks, R, size], vocab at most ranks * size."""
    check_array("parts", parts, (np.dtype(np.float32),), ranks=None, rows=None, size=None)
    ranks, rows, size = parts.shape
    check_array("out", out, (np.dtype(np.float32),), rows=rows, vocab=None)
    check(out.shape[1] <= ranks * size, f"out has {out.shape[1]} columns, and {ranks} parts of {size} make {ranks * size}")
    launch(join_parts_kernel, (ceil_div(size, BLOCK * PER_THREAD), rows, ranks), BLOCK, (parts, out), stream)
