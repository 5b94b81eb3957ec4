"""A GEMV that prefetches, and crashes for one customer."""

import numpy as np
from numba import cuda, float32

from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import expect
from minllm.runtime.kernel import kernel
from minllm.sim import unwritten
from minllm.tiles.warp import warp_sum

WARP = 32


@kernel
def prefetching_kernel(weight, x, out):
    """out[row] = weight[row] . x, one warp per row; weight [rows, K], K a multiple of 32."""
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    total = float32(0.0)
    following = weight[row, lane]
    for first in range(0, weight.shape[1], WARP):
        current = following
        following = weight[row, first + WARP + lane]  # in flight while the product below is computed
        total += current * x[first + lane]
    total = warp_sum(total)
    if lane == 0:
        out[row] = total


@kernel
def mended_kernel(weight, x, out):
    """The same, but the last step prefetches nothing."""
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    total = float32(0.0)
    following = weight[row, lane]
    for first in range(0, weight.shape[1], WARP):
        current = following
        if first + WARP < weight.shape[1]:
            following = weight[row, first + WARP + lane]
        total += current * x[first + lane]
    total = warp_sum(total)
    if lane == 0:
        out[row] = total


def examine(kernel):
    """Three rows of 96 numbers."""
    random = np.random.default_rng(0)
    weight, x = (random.standard_normal(shape).astype(np.float32) for shape in ((3, 96), 96))
    out = unwritten((3,), np.float32)
    kernel.simulate[3, WARP](weight, x, out)
    expect("out", out, weight.astype(np.float64) @ x, ("row",))


CASE = Case(
    name="one_customer",
    lesson=5,
    title="It crashes for one customer",
    story="Loading the next numbers while the last ones are multiplied made this product faster. All tests pass, in every size. A "
    "month later one customer reports an illegal memory access, on some days only. It is a model like all others.",
    hint="Every number that is multiplied is right. Which numbers are loaded and then not used? Where do they lie for the last row of "
    "a matrix, and what lies there in memory?",
    broken=prefetching_kernel,
    mended=mended_kernel,
    examine=examine,
    guilty="following = weight[row, first + WARP + lane]",
    solution="In its last step each warp loads 32 numbers beyond its row. For all rows but the last, these are the next row's: a "
    "wasted read, and no error. For the last row they lie behind the matrix, where memory nearly always belongs to something "
    "else of the same program, so that nothing happens: GPUs notice pages, not arrays. It takes a matrix that ends where a "
    "mapped page ends, and that is up to the allocator and the day. The result is never wrong, so no test of results can find "
    "it. A check of bounds finds it at once.",
)
