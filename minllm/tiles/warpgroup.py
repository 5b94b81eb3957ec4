"""Warpgroups: 128 threads each, which play different roles in a block (warp specialisation) and meet at barriers."""

from numba import cuda

from minllm import ptx
from minllm.tiles.warp import ALL_LANES

THREADS = 128
ROWS = 64  # rows of a warpgroup's sums
WARP_ROWS = 16


@cuda.jit(device=True, forceinline=True)
def uniform(value):
    """The same value, warp-uniform for the compiler: descriptors made of it are computed once per warp."""
    return cuda.shfl_sync(ALL_LANES, value, 0)


@cuda.jit(device=True, forceinline=True)
def sync(barrier):
    """All threads of one warpgroup meet at a named barrier (1 to 15)."""
    ptx.bar_sync(barrier, THREADS)


@cuda.jit(device=True, forceinline=True)
def sync_blocks(blocks):
    """All threads of the block meet, or of the cluster if `blocks`, a constant, is more than 1."""
    if blocks > 1:
        ptx.barrier_cluster_arrive()
        ptx.barrier_cluster_wait()
    else:
        cuda.syncthreads()
