"""Sums over the threads of a warp and of a block, by shuffles (CUDA C++ Programming Guide, "Warp Shuffle Functions")."""

from numba import cuda, float32

WARP = 32
FULL_WARP = 0xFFFFFFFF


@cuda.jit(device=True)
def warp_sum(value):
    """The sum of `value` over the warp's 32 lanes, in every lane: five exchanges with partners 16, 8, 4, 2 and 1 lanes away."""
    value += cuda.shfl_xor_sync(FULL_WARP, value, 16)
    value += cuda.shfl_xor_sync(FULL_WARP, value, 8)
    value += cuda.shfl_xor_sync(FULL_WARP, value, 4)
    value += cuda.shfl_xor_sync(FULL_WARP, value, 2)
    value += cuda.shfl_xor_sync(FULL_WARP, value, 1)
    return value


@cuda.jit(device=True)
def block_sum(value, partials):
    """The sum of `value` over a one-dimensional block of whole warps, in every thread.

    partials: float32 [32] in shared memory, its own for each call in a kernel: one barrier then suffices.
    """
    lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
    value = warp_sum(value)
    if lane == 0:
        partials[warp] = value
    cuda.syncthreads()
    # Every warp adds up the warps' sums for itself: cheaper than a second barrier.
    return warp_sum(partials[lane] if lane < cuda.blockDim.x >> 5 else float32(0))
