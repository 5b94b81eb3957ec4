"""A block sums a row, and the result varies."""

import numpy as np
from numba import cuda, float32

from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import expect
from minllm.runtime.kernel import kernel
from minllm.sim import unwritten

BLOCK = 256


@kernel
def row_sum_kernel(x, out):
    """out[row] = sum of x[row], one block per row; x [rows, columns], out [rows]."""
    partial = cuda.shared.array(BLOCK, float32)
    row, thread = cuda.blockIdx.x, cuda.threadIdx.x
    total = float32(0.0)
    column = thread
    while column < x.shape[1]:
        total += x[row, column]
        column += BLOCK
    partial[thread] = total
    cuda.syncthreads()
    distance = BLOCK // 2
    while distance > 0:  # half of the threads add the other half's sums to theirs, then a quarter, then an eighth
        if thread < distance:
            partial[thread] += partial[thread + distance]
        distance //= 2
    if thread == 0:
        out[row] = partial[0]


@kernel
def mended_kernel(x, out):
    """The same with a barrier after each step."""
    partial = cuda.shared.array(BLOCK, float32)
    row, thread = cuda.blockIdx.x, cuda.threadIdx.x
    total = float32(0.0)
    column = thread
    while column < x.shape[1]:
        total += x[row, column]
        column += BLOCK
    partial[thread] = total
    cuda.syncthreads()
    distance = BLOCK // 2
    while distance > 0:
        if thread < distance:
            partial[thread] += partial[thread + distance]
        cuda.syncthreads()  # this step's sums are written before the next step reads them
        distance //= 2
    if thread == 0:
        out[row] = partial[0]


def examine(kernel):
    """Two rows of 300 numbers."""
    x = np.random.default_rng(0).standard_normal((2, 300)).astype(np.float32)
    out = unwritten((2,), np.float32)
    kernel.simulate[2, BLOCK](x, out)
    expect("out", out, x.astype(np.float64).sum(1), ("row",))


CASE = Case(
    name="restless_sum",
    lesson=2,
    title="A sum that changes from run to run",
    story="The kernel adds up the rows of a matrix. With blocks of 64 threads, 600,000 rows on an H200 were all right. With blocks of "
    "256, some 3,400 of 200,000 rows were wrong: other rows in each run, by other amounts.",
    hint="Follow two threads of different warps through the last loop. Who writes what thread 32 of a block of 256 reads in its second "
    "step, and when? And why does a block of 64 never get into trouble?",
    broken=row_sum_kernel,
    mended=mended_kernel,
    examine=examine,
    guilty="partial[thread] += partial[thread + distance]",
    solution="A race. In the second step, thread 32 reads what thread 96 has made in the first. That is a thread of another warp, "
    "which may be later. With 64 threads all steps but the first belong to one warp, whose lanes happen to run in step: right "
    "by luck, which nothing promises, and the simulator does not count on it. The barrier above the loop orders the first "
    "step only; each step needs one. It stands beside the `if`, not inside: all threads of a block must reach it.",
)
