"""The softmax of each row of x: check, trace and race it with `minllm race softmax.py`."""

import math

from numba import cuda, float32


@cuda.jit
def softmax_kernel(x, out):  # both [rows, columns]
    row = cuda.grid(1)  # one thread per row
    if row < x.shape[0]:
        largest, total = float32(-math.inf), float32(0)
        for column in range(x.shape[1]):
            largest = max(largest, float32(x[row, column]))
        for column in range(x.shape[1]):
            total += math.exp(float32(x[row, column]) - largest)
        for column in range(x.shape[1]):
            out[row, column] = math.exp(float32(x[row, column]) - largest) / total


def softmax(x, out):
    """Launch the kernel; x and out are device arrays."""
    softmax_kernel[-(-x.shape[0] // 32), 32](x, out)
