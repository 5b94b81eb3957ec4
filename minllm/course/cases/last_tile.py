"""A row is summed tile by tile while the next tile is in flight; the last tile is sometimes wrong."""

import numpy as np
from numba import cuda, float32

from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import expect
from minllm.ptx import cp_async_16, cp_async_commit_group, cp_async_wait_group_1, shared_address
from minllm.runtime.kernel import kernel
from minllm.sim import unwritten
from minllm.tiles.warp import warp_sum

WARP = 32
TILE = 4 * WARP  # float32 per tile: 16 bytes per thread


@kernel
def tiled_sum_kernel(x, out):
    """out[0] = sum of x, by one warp; x [tiles * TILE]. Double buffering: one buffer is read while the other is filled."""
    buffers = cuda.shared.array((2, TILE), float32, 128)
    lane = cuda.threadIdx.x
    tiles = x.shape[0] // TILE
    total = float32(0.0)
    cp_async_16(shared_address(buffers, 4 * lane), x, 4 * lane, 16)
    cp_async_commit_group()
    for tile in range(tiles):
        if tile + 1 < tiles:
            cp_async_16(shared_address(buffers, (tile + 1) % 2 * TILE + 4 * lane), x, (tile + 1) * TILE + 4 * lane, 16)
            cp_async_commit_group()
        cp_async_wait_group_1()  # all copies but the newest have arrived: this tile is here, the next one may be in flight
        cuda.syncthreads()
        for i in range(4):
            total += buffers[tile % 2, lane + WARP * i]
        cuda.syncthreads()
    total = warp_sum(total)
    if lane == 0:
        out[0] = total


@kernel
def mended_kernel(x, out):
    """The same, but every step commits a group, even an empty one."""
    buffers = cuda.shared.array((2, TILE), float32, 128)
    lane = cuda.threadIdx.x
    tiles = x.shape[0] // TILE
    total = float32(0.0)
    cp_async_16(shared_address(buffers, 4 * lane), x, 4 * lane, 16)
    cp_async_commit_group()
    for tile in range(tiles):
        if tile + 1 < tiles:
            cp_async_16(shared_address(buffers, (tile + 1) % 2 * TILE + 4 * lane), x, (tile + 1) * TILE + 4 * lane, 16)
        cp_async_commit_group()  # the newest group is always the next tile's, and empty in the last step
        cp_async_wait_group_1()
        cuda.syncthreads()
        for i in range(4):
            total += buffers[tile % 2, lane + WARP * i]
        cuda.syncthreads()
    total = warp_sum(total)
    if lane == 0:
        out[0] = total


def examine(kernel):
    """Three tiles."""
    x = np.random.default_rng(0).standard_normal(3 * TILE).astype(np.float32)
    out = unwritten((1,), np.float32)
    kernel.simulate[1, WARP](x, out)
    expect("out", out, np.array([x.astype(np.float64).sum()]))


CASE = Case(
    name="last_tile",
    lesson=5,
    title="Wrong by one tile",
    story="Tiles are copied asynchronously, and two buffers take turns, so that one tile is added up while the next arrives. On an "
    "H200 the sum of 64 tiles is wrong in every run, always by the same amount: it has the last tile but two twice, and the last "
    "one not at all. A sister of this kernel that computes more on each tile is right for years, and then wrong on a faster GPU.",
    hint="`cp_async_wait_group_1` waits until at most one group of copies is in flight. Count the groups in flight in each "
    "step. Which one may still be, in the last step?",
    broken=tiled_sum_kernel,
    mended=mended_kernel,
    examine=examine,
    guilty="cp_async_wait_group_1()",
    solution="The newest group is the next tile's as long as there is a next tile. In the last step no group is committed, so the "
    "newest is the tile that is needed now, and the wait does not cover it. The buffer may still hold what was there two tiles ago. "
    "Usually the copy has long arrived, since a step takes longer than a copy. Commit a group in every step: an empty one is "
    "done at once, and the count is right again. The simulator lets a copy take effect only when a thread waits for it.",
)
