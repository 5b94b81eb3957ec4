"""Rows are scaled in shared memory and stored by TMA, and some of them are the wrong ones."""

import numpy as np
from numba import cuda, float32

from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import expect
from minllm.ptx import (
    cp_async_bulk_commit_group,
    cp_async_bulk_global_shared,
    cp_async_bulk_wait_group_0,
    cp_async_bulk_wait_group_read_0,
    fence_proxy_async,
    shared_address,
)
from minllm.runtime.kernel import kernel
from minllm.sim import unwritten

WARP = 32
ROW = 4 * WARP  # float32


@kernel
def scale_rows_kernel(x, out, factor):
    """out = factor * x, both [rows * ROW], flat; one warp takes row after row, and one bulk copy stores each."""
    tile = cuda.shared.array(ROW, float32, 128)
    lane = cuda.threadIdx.x
    for first in range(0, x.shape[0], ROW):
        for i in range(4):
            tile[lane + WARP * i] = factor * x[first + lane + WARP * i]
        cuda.syncthreads()
        if lane == 0:
            cp_async_bulk_global_shared(out, first, shared_address(tile, 0), 4 * ROW)
            cp_async_bulk_commit_group()
            cp_async_bulk_wait_group_read_0()  # the copy has read the tile, which may be overwritten
        cuda.syncthreads()
    if lane == 0:
        cp_async_bulk_wait_group_0()


@kernel
def mended_kernel(x, out, factor):
    """The same with a fence between the threads' stores and the copy."""
    tile = cuda.shared.array(ROW, float32, 128)
    lane = cuda.threadIdx.x
    for first in range(0, x.shape[0], ROW):
        for i in range(4):
            tile[lane + WARP * i] = factor * x[first + lane + WARP * i]
        fence_proxy_async()  # by every thread that stored, before the barrier
        cuda.syncthreads()
        if lane == 0:
            cp_async_bulk_global_shared(out, first, shared_address(tile, 0), 4 * ROW)
            cp_async_bulk_commit_group()
            cp_async_bulk_wait_group_read_0()
        cuda.syncthreads()
    if lane == 0:
        cp_async_bulk_wait_group_0()


def examine(kernel):
    """Three rows."""
    x = np.random.default_rng(0).standard_normal(3 * ROW).astype(np.float32)
    out = unwritten(x.shape, np.float32)
    kernel.simulate[1, WARP](x, out, np.float32(2))
    expect("out", out, 2 * x.astype(np.float64))


CASE = Case(
    name="lagging_rows",
    lesson=7,
    title="Rows that lag behind",
    story="Since results leave shared memory by bulk copies, it happens once in a long while that a row holds what the row before it "
    "should, in whole or in part. 80,000 rows in a test were all right. Every barrier is in its place, and compute-sanitizer has "
    "nothing to say.",
    hint="A barrier makes the threads' stores visible to the threads. Who reads the tile here?",
    broken=scale_rows_kernel,
    mended=mended_kernel,
    examine=examine,
    guilty="tile[lane + WARP * i] = factor * x[first + lane + WARP * i]",
    solution="The unit that executes bulk copies, TMA, is not a thread. It reads shared memory through the async proxy, and the "
    "threads' stores need not be visible there after the barrier. The copy may still read the old contents: the previous row. Each "
    "thread that stored has to execute fence.proxy.async before the barrier, which then tells the thread that starts the copy "
    "that all have done so. In the other direction nothing is missing: the wait for the read lets the threads write again. Nearly "
    "always the stores arrive in time, which is why this bug is found by reading, or by a simulator that keeps both views of "
    "shared memory.",
)
