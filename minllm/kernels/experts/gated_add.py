"""A gated sum, which adds the shared expert to those that the router chose: every token takes it, as far as its gate lets it through.

    out[t] = x[t] + sigmoid(gate[t]) * y[t]

T tokens of H elements of b bytes: 2 T H FLOPs, reads 2 T H b bytes and writes T H b: memory-bound. Each thread computes a 16-byte vector.

Source: Qwen Team 2024, "Qwen1.5-MoE: Matching 7B Model Performance with 1/3 Activated Parameters" (shared experts).
"""

import functools

import numpy as np
from numba import cuda, float32, int32, int64

from minllm.kernels.activation.sigmoid import sigmoid
from minllm.kernels.arguments import FLOAT_DTYPES, ceil_div, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.vector import vector_access, vectors_per_row
from minllm.runtime.kernel import kernel, launch

BLOCK = 64


def gated_add_reference(x: np.ndarray, y: np.ndarray, gate: np.ndarray) -> np.ndarray:
    """x + sigmoid(gate) * y in the dtype of x [T, H], computed in float32; y [T, H], gate [T, 1]."""
    x_wide, y_wide, gate = (one.astype(np.float32, copy=False) for one in (x, y, gate))
    with np.errstate(over="ignore"):  # exp(-gate) of a very negative gate is inf, and the sigmoid 0, as it should be
        return (x_wide + y_wide / (1 + np.exp(-gate))).astype(x.dtype)


@functools.cache
def gated_add_kernel(dtype, vectorized: bool):
    """The kernel; vectorized: rows are whole, aligned vectors of `dtype`."""
    width, load, store = vector_access(dtype) if vectorized else (1, None, None)

    @kernel(dependent_launch=True)
    def gated_add_kernel(x, y, gate, out):
        """x, y, out [T, H], gate [T, 1]; grid: tokens, vectors of a row."""
        wait_for_predecessors()
        token, hidden = int64(cuda.blockIdx.x), out.shape[1]
        column = int32(cuda.blockIdx.y * BLOCK + cuda.threadIdx.x) * width
        if column >= hidden:
            return
        total, added = cuda.local.array(width, float32), cuda.local.array(width, float32)
        if vectorized:
            load(x, token * hidden + column, total, 0)
            load(y, token * hidden + column, added, 0)
        else:
            total[0], added[0] = float32(x[token, column]), float32(y[token, column])
        share = sigmoid(float32(gate[token, 0]))
        for j in range(width):
            total[j] += share * added[j]
        if vectorized:
            store(out, token * hidden + column, total, 0)
        else:
            out[token, column] = total[0]

    return gated_add_kernel


def gated_add(x, y, gate, out, stream=None) -> None:
    """Write x + sigmoid(gate) * y into `out` [T, H], which may be x or y; gate [T, 1].

    All arrays share one dtype: float32, float16 or bfloat16. Raises KernelArgumentError for anything else.
    """
    check_array("out", out, FLOAT_DTYPES, tokens=None, hidden=None)
    tokens, hidden = out.shape
    for name, array in (("x", x), ("y", y)):
        check_array(name, array, (out.dtype,), tokens=tokens, hidden=hidden)
    check_array("gate", gate, (out.dtype,), tokens=tokens, one=1)
    vectors = vectors_per_row(hidden, x, y, out)
    grid = (tokens, ceil_div(vectors or hidden, BLOCK))
    launch(gated_add_kernel(out.dtype, vectors > 0), grid, BLOCK, (x, y, gate, out), stream)
