"""The rows of x in the order of experts, for GEMMs that load them by TMA, which reads neighbouring rows.

    out[p] = x[pairs[p] // k]                                x [T, H], pairs [T k] as the counting sort writes them

T k rows of H elements of b bytes are read, T of them different, and written: memory-bound. Each thread copies a 16-byte vector.
"""

import functools

import numpy as np
from numba import cuda, int32, int64

from minllm.kernels.arguments import FLOAT_DTYPES, INDEX_DTYPES, ceil_div, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.vector import vectors_per_row
from minllm.ptx import load_128, store_128
from minllm.runtime.kernel import check, kernel, launch

BLOCK = 128


def gather_rows_reference(x: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """The rows of x in the order of `pairs`."""
    return x[pairs // (len(pairs) // len(x))]


@functools.cache
def gather_rows_kernel(width: int):
    """The kernel for vectors of `width` elements."""

    @kernel(dependent_launch=True)
    def gather_rows_kernel(x, pairs, out):
        """x [T, H], pairs [P], out [P, H]; grid: pairs, vectors of a row."""
        wait_for_predecessors()
        pair, column = int64(cuda.blockIdx.x), int32(cuda.blockIdx.y * BLOCK + cuda.threadIdx.x) * width
        if column < out.shape[1]:
            token = int64(pairs[pair] // (out.shape[0] // x.shape[0]))
            words = load_128(x, token * out.shape[1] + column)
            store_128(out, pair * out.shape[1] + column, words[0], words[1], words[2], words[3])

    return gather_rows_kernel


def gather_rows(x, pairs, out, stream=None) -> None:
    """Write x[pairs // k] into `out` [P, H]: x [T, H], pairs int32 [P = T * k].

    x and out share one dtype: float32, float16 or bfloat16; their rows are whole vectors of 16 bytes. Raises KernelArgumentError for
    anything else.
    """
    check_array("x", x, FLOAT_DTYPES, tokens=None, hidden=None)
    check_array("pairs", pairs, INDEX_DTYPES, pairs=None)
    check_array("out", out, (x.dtype,), pairs=pairs.shape[0], hidden=x.shape[1])
    vectors = vectors_per_row(x.shape[1], x, out)
    check(vectors > 0, f"rows of x {list(x.shape)} begin on multiples of 16 bytes")
    launch(gather_rows_kernel(x.shape[1] // vectors), (pairs.shape[0], ceil_div(vectors, BLOCK)), BLOCK, (x, pairs, out), stream)
