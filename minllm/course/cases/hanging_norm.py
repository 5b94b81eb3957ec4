"""An RMSNorm that hangs, sometimes."""

import numpy as np
from numba import cuda, float32
from numba.cuda import libdevice

from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import expect
from minllm.runtime.kernel import kernel
from minllm.sim import unwritten

BLOCK = 64


@kernel
def norm_kernel(x, out, epsilon):
    """out[row] = x[row] / sqrt(mean of x[row] ** 2 + epsilon), one block per row; both [rows, hidden]."""
    partial = cuda.shared.array(BLOCK, float32)
    row, thread = cuda.blockIdx.x, cuda.threadIdx.x
    hidden = x.shape[1]
    squares = float32(0.0)
    for column in range(thread, hidden, BLOCK):
        squares += x[row, column] * x[row, column]
    partial[thread] = squares
    cuda.syncthreads()
    distance = BLOCK // 2
    while distance > 0:
        if thread < distance:
            partial[thread] += partial[thread + distance]
            cuda.syncthreads()  # this step's sums are written before the next step reads them
        distance //= 2
    cuda.syncthreads()  # the total is written before all threads read it
    scale = libdevice.rsqrtf(partial[0] / float32(hidden) + epsilon)
    for column in range(thread, hidden, BLOCK):
        out[row, column] = x[row, column] * scale


@kernel
def mended_kernel(x, out, epsilon):
    """The same, but all threads reach every barrier."""
    partial = cuda.shared.array(BLOCK, float32)
    row, thread = cuda.blockIdx.x, cuda.threadIdx.x
    hidden = x.shape[1]
    squares = float32(0.0)
    for column in range(thread, hidden, BLOCK):
        squares += x[row, column] * x[row, column]
    partial[thread] = squares
    cuda.syncthreads()
    distance = BLOCK // 2
    while distance > 0:
        if thread < distance:
            partial[thread] += partial[thread + distance]
        cuda.syncthreads()
        distance //= 2
    scale = libdevice.rsqrtf(partial[0] / float32(hidden) + epsilon)
    for column in range(thread, hidden, BLOCK):
        out[row, column] = x[row, column] * scale


def examine(kernel):
    """Two rows of 80 numbers."""
    x = np.random.default_rng(0).standard_normal((2, 80)).astype(np.float32)
    out = unwritten((2, 80), np.float32)
    kernel.simulate[2, BLOCK](x, out, np.float32(1e-5))
    wide = x.astype(np.float64)
    expect("out", out, wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5), ("row", "column"))


CASE = Case(
    name="hanging_norm",
    lesson=6,
    title="A norm that hangs, or does not",
    story="With one compiler this RMSNorm never returns, and the process cannot even be stopped with Ctrl-C. With another it returns, "
    "and now and then a row comes out too large. Its author tested it in blocks of 32 threads, where all is well.",
    hint="Count barriers: how many does thread 0 reach, and how many does the last thread of the block?",
    broken=norm_kernel,
    mended=mended_kernel,
    examine=examine,
    guilty="cuda.syncthreads()  # this step's sums",
    solution="The barrier stands in a branch that only a part of the threads takes. A barrier waits for all threads of the block, and "
    "those that left the loop early never come to it. What happens then is undefined: the hardware counts arrivals of warps, "
    "so it may wait for ever, or take an arrival at another barrier for one at this, and let threads read sums that are not "
    "complete. The barrier belongs behind the `if`, where all threads pass it equally often.",
)
