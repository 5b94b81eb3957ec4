"""The weighted sum of a token's experts, from their outputs in the order of tokens.

    out[t] = sum over i of weights[t, i] * outputs[t k + i]   (+ residual[t])

Added in float32 in the order of i, so that a token's result never depends on other tokens. T tokens of H elements of b bytes, k experts
each: 2 T k H FLOPs, reads T k H b bytes and writes T H b: memory-bound. Each thread computes a 16-byte vector.

Source: combine_reference in kernels/experts/reference.py.
"""

import functools

import numpy as np
from numba import cuda, float32, int32, int64

from minllm.kernels.arguments import FLOAT_DTYPES, ceil_div, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.vector import vector_access, vectors_per_row
from minllm.runtime.kernel import kernel, launch

BLOCK = 64


@functools.cache
def combine_kernel(dtype, chosen: int, vectorized: bool):
    """The kernel for `chosen` experts per token; vectorized: rows are whole, aligned vectors of `dtype`."""
    width, load, store = vector_access(dtype) if vectorized else (1, None, None)

    @kernel(dependent_launch=True)
    def combine_kernel(outputs, weights, residual, out):
        """outputs [T * k, H], weights [T, k], residual None or as out [T, H]; grid: tokens, vectors of a row."""
        wait_for_predecessors()
        token, hidden = int64(cuda.blockIdx.x), out.shape[1]
        column = int32(cuda.blockIdx.y * BLOCK + cuda.threadIdx.x) * width
        if column >= hidden:
            return
        values, total = cuda.local.array(width, float32), cuda.local.array(width, float32)
        for j in range(width):
            total[j] = float32(0)
        for place in range(chosen):
            row = token * chosen + place
            if vectorized:
                load(outputs, row * hidden + column, values, 0)
            else:
                values[0] = float32(outputs[row, column])
            for j in range(width):
                total[j] += weights[token, place] * values[j]
        if residual is not None:
            if vectorized:
                load(residual, token * hidden + column, values, 0)
            else:
                values[0] = float32(residual[token, column])
            for j in range(width):
                total[j] += values[j]
        if vectorized:
            store(out, token * hidden + column, total, 0)
        else:
            out[token, column] = total[0]

    return combine_kernel


def combine(outputs, weights, out, residual=None, stream=None) -> None:
    """Write the weighted sums of outputs [T * k, H] into `out` [T, H], plus residual [T, H] if given; weights float32 [T, k].

    The others share one dtype: float32, float16 or bfloat16; residual may be `out`. Raises KernelArgumentError for anything else.
    """
    check_array("out", out, FLOAT_DTYPES, tokens=None, hidden=None)
    tokens, hidden = out.shape
    check_array("weights", weights, (np.dtype(np.float32),), tokens=tokens, chosen=None)
    chosen = weights.shape[1]
    check_array("outputs", outputs, (out.dtype,), pairs=tokens * chosen, hidden=hidden)
    if residual is not None:
        check_array("residual", residual, (out.dtype,), tokens=tokens, hidden=hidden)
    arrays = (outputs, out) if residual is None else (outputs, out, residual)
    vectors = vectors_per_row(hidden, *arrays)
    grid = (tokens, ceil_div(vectors or hidden, BLOCK))
    launch(combine_kernel(out.dtype, chosen, vectors > 0), grid, BLOCK, (outputs, weights, residual, out), stream)
