"""The rows of x in the order of experts, for GEMMs that load them by TMA, which reads neighbouring rows.

    out[p] = x[pairs[p] // k]                                x [T, H], pairs [T k] as the counting sort writes them

T k rows of H elements of b bytes are read, T of them different, and written: memory-bound. Each thread copies up to
four 16-byte vectors, which are in flight at once.
"""

import functools

import numpy as np
from numba import cuda, int32, int64, uint32

from minllm.kernels.arguments import FLOAT_DTYPES, INDEX_DTYPES, ceil_div, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.vector import load_words, vectors_per_row
from minllm.ptx import store_128
from minllm.runtime.kernel import check, kernel, launch

BLOCK, EACH = 64, 4  # threads, and vectors of each that are in flight
WORDS = 4 * EACH


def gather_rows_reference(x: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """The rows of x in the order of `pairs`."""
    return x[pairs // (len(pairs) // len(x))]


@functools.cache
def gather_rows_kernel(width: int, chosen: int):
    """The kernel for vectors of `width` elements, and `chosen` pairs per token."""

    @kernel(dependent_launch=True)
    def gather_rows_kernel(x, pairs, out):
        """x [T, H], pairs [P], out [P, H]; grid: pairs, vectors of a row."""
        wait_for_predecessors()
        pair, hidden = int32(cuda.blockIdx.x), out.shape[1]
        token = int64(pairs[pair] // int32(chosen))
        first = int32(cuda.blockIdx.y * BLOCK * EACH + cuda.threadIdx.x) * width
        words = cuda.local.array(WORDS, uint32)
        for u in range(EACH):
            if first + u * BLOCK * width < hidden:
                load_words(x, token * hidden + first + u * BLOCK * width, words, 4 * u)
        for u in range(EACH):
            if first + u * BLOCK * width < hidden:
                place = int64(pair) * hidden + first + u * BLOCK * width
                store_128(out, place, words[4 * u], words[4 * u + 1], words[4 * u + 2], words[4 * u + 3])

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
    whole = x.shape[0] > 0 and pairs.shape[0] % x.shape[0] == 0
    check(whole, f"{pairs.shape[0]} pairs are not the same number for each of {x.shape[0]} rows")
    grid = (pairs.shape[0], ceil_div(vectors, BLOCK * EACH))
    launch(gather_rows_kernel(x.shape[1] // vectors, pairs.shape[0] // x.shape[0]), grid, BLOCK, (x, pairs, out), stream)
