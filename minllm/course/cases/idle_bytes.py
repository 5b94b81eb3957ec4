"""A GEMV that loads the right bytes and is slow all the same."""

import numpy as np
from numba import cuda, float32

from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import Mismatch, expect
from minllm.runtime.kernel import kernel
from minllm.sim import detecting, tracing, unwritten
from minllm.tiles.warp import ALL_LANES

NEIGHBOURS = 4  # sectors of 32 bytes that a request of 32 neighbouring float32 touches


@kernel
def matrix_vector_kernel(matrix, vector, out):
    """out[row] = matrix[row] . vector, one thread per row; matrix [rows, columns]. Blocks of 32 threads, more than the rows need."""
    row = cuda.blockIdx.x * 32 + cuda.threadIdx.x
    if row < matrix.shape[0]:
        total = float32(0.0)
        for column in range(matrix.shape[1]):
            total += matrix[row, column] * vector[column]
        out[row] = total


@kernel
def mended_kernel(matrix, vector, out):
    """The same, with one warp per row."""
    lane = cuda.threadIdx.x
    row = cuda.blockIdx.x
    if row < matrix.shape[0]:
        total = float32(0.0)
        column = lane
        while column < matrix.shape[1]:
            total += matrix[row, column] * vector[column]
            column += 32
        for step in range(5):
            total += cuda.shfl_xor_sync(ALL_LANES, total, 16 >> step)
        if lane == 0:
            out[row] = total


def examine(kernel):
    """A matrix of 64 rows of 64 numbers; counts the sectors that reads of its rows touch."""
    random = np.random.default_rng(0)
    matrix, vector = (random.standard_normal(shape).astype(np.float32) for shape in ((64, 64), 64))
    out = unwritten((64,), np.float32)
    with detecting(False), tracing() as traces:
        kernel.simulate[64, 32](matrix, vector, out)
    expect("out", out, matrix.astype(np.float64) @ vector, ("row",))
    read = traces[0].arrays["matrix"].read
    if read.sectors_per_request > NEIGHBOURS:
        raise Mismatch(
            f"reads of matrix: {read.requests:,} requests of {read.bytes // read.requests} bytes each touch "
            f"{read.sectors_per_request:.0f} sectors of 32 bytes;\nneighbouring addresses would need {NEIGHBOURS}. "
            f"To give {read.bytes:,} bytes, the memory system moves {read.sector_bytes:,}."
        )


CASE = Case(
    name="idle_bytes",
    lesson=4,
    title="All bytes are needed, and still too many move",
    story="A GEMV reads every element of the matrix once. By the roofline it ought to run as fast as a copy. It does "
    "not come near, while the profiler shows a memory system that is busy all the time. The arithmetic cannot be the limit: it "
    "is two operations for four bytes.",
    hint="Memory moves sectors of 32 bytes. Take the 32 threads of a warp in their first step of the loop: which 32 addresses do they "
    "ask for, and in how many sectors do these lie?",
    broken=matrix_vector_kernel,
    mended=mended_kernel,
    examine=examine,
    guilty="total += matrix[row, column] * vector[column]",
    solution="The reads are not coalesced. The lanes of a warp stand in 32 different rows, so their 32 numbers of 4 bytes lie in 32 "
    "sectors, and 28 of each sector's 32 bytes are not wanted now. The other bytes are wanted later, by the same thread's "
    "next steps, but by then the cache may have dropped them, since thousands of threads do the same. Give each row to a "
    "warp: its lanes read neighbours, 4 sectors per request, and add up their parts by shuffles. The requested bytes are the "
    "same, the bytes moved are an eighth.",
)
