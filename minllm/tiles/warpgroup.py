"""Warpgroups of 128 threads, which have different roles in a block (warp specialisation), and their barriers."""

from numba import cuda

from minllm import ptx
from minllm.tiles.warp import ALL_LANES

THREADS = 128
ROWS = 64  # rows of a warpgroup's accumulator
WARP_ROWS = 16  # rows of it per warp


@cuda.jit(device=True, forceinline=True)
def uniform(value):
    """The same value, made warp-uniform for the compiler, so that descriptors are computed from it once per warp."""
    return cuda.shfl_sync(ALL_LANES, value, 0)


@cuda.jit(device=True, forceinline=True)
def sync(barrier):
    """Synchronise all threads of one warpgroup at a named barrier (1 to 15)."""
    ptx.bar_sync(barrier, THREADS)


@cuda.jit(device=True, forceinline=True)
def wait_for_blocks():
    """Wait until all threads of the cluster are here. It orders no memory accesses, so it does not wait until stores are complete.

    Use it before a block exits whose shared memory others have read.
    """
    ptx.barrier_cluster_arrive_relaxed()
    ptx.barrier_cluster_wait()


@cuda.jit(device=True, forceinline=True)
def sync_blocks(blocks):
    """Synchronise all threads of the block, or of the cluster if `blocks`, a constant, is more than 1."""
    if blocks > 1:
        ptx.barrier_cluster_arrive()
        ptx.barrier_cluster_wait()
    else:
        cuda.syncthreads()
