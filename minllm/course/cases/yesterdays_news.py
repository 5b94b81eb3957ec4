"""Two GPUs hand each other their parts of a sum, and now and then one adds an old part."""

import numpy as np
from numba import cuda

from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import expect
from minllm.ptx import ld_acquire_sys_u32, st_relaxed_sys_u32, st_release_sys_u32
from minllm.runtime.kernel import kernel
from minllm.sim import simulate_ranks, unwritten

THREADS = 64


@kernel
def exchange_kernel(x, out, rank, copies, flags, epoch):
    """out = the sum of both ranks' x; copies, flags: of both ranks; one block."""
    i, peer = cuda.threadIdx.x, 1 - rank
    copies[rank][i] = x[i]
    cuda.syncthreads()  # all of the block have written
    if i == 0:
        st_relaxed_sys_u32(flags[peer], 0, epoch)
        while ld_acquire_sys_u32(flags[rank], 0) != epoch:
            pass
    cuda.syncthreads()
    out[i] = copies[0][i] + copies[1][i]


@kernel
def mended_kernel(x, out, rank, copies, flags, epoch):
    """The same, and the flag is stored with release."""
    i, peer = cuda.threadIdx.x, 1 - rank
    copies[rank][i] = x[i]
    cuda.syncthreads()
    if i == 0:
        st_release_sys_u32(flags[peer], 0, epoch)  # after everything that the block has written
        while ld_acquire_sys_u32(flags[rank], 0) != epoch:
            pass
    cuda.syncthreads()
    out[i] = copies[0][i] + copies[1][i]


def examine(kernel):
    """One exchange of 64 numbers between two ranks."""
    x = np.random.default_rng(0).standard_normal((2, THREADS)).astype(np.float32)
    out, copies, flags = unwritten((2, THREADS), np.float32), np.zeros((2, THREADS), np.float32), np.zeros((2, 1), np.uint32)
    simulate_ranks(kernel, 1, THREADS, [(x[rank], out[rank], rank, tuple(copies), tuple(flags), 1) for rank in range(2)])
    for rank in range(2):
        expect(f"out of rank {rank}", out[rank], x.astype(np.float64).sum(0))


CASE = Case(
    name="yesterdays_news",
    lesson=20,
    title="Yesterday's news",
    story="Two GPUs generate text together. All tests pass, and so do a million sums in a row. Under load, about once an hour, one of the "
    "two GPUs adds a few numbers that its peer sent in the step before. Each sum of old and new numbers looks harmless. Nobody can "
    "repeat it, and with a `printf` beside the flag it never happens.",
    hint="Thread 0 stores the flag after the barrier, so after all data. Does the other GPU see the two stores in this order?",
    broken=exchange_kernel,
    mended=mended_kernel,
    examine=examine,
    guilty="st_relaxed_sys_u32(flags[peer], 0, epoch)",
    solution="A relaxed store promises nothing about other stores: data and flag travel by themselves, and the flag may be visible first. "
    "The reader's acquire is half of a pair whose other half, a release, is missing. The barrier orders the threads of one block; it "
    "says nothing about when another GPU sees what they wrote. A store with release at system scope does: whoever reads the flag with "
    "acquire sees what was written before it. In the simulator every store is visible at once, so the sum is right there; but it "
    "knows which pairs order two ranks, and reports the read that none does.",
)
