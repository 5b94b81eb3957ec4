"""Sums over the threads of a warp and of a block, by shuffles (CUDA C++ Programming Guide, "Warp Shuffle Functions")."""

from numba import cuda, float32

from minllm.kernels.warp import ALL_LANES


@cuda.jit(device=True)
def warp_sum(value):
    """The sum of `value` over the warp's 32 lanes, in every lane: five exchanges with partners 16, 8, 4, 2 and 1 lanes away."""
    value += cuda.shfl_xor_sync(ALL_LANES, value, 16)
    value += cuda.shfl_xor_sync(ALL_LANES, value, 8)
    value += cuda.shfl_xor_sync(ALL_LANES, value, 4)
    value += cuda.shfl_xor_sync(ALL_LANES, value, 2)
    value += cuda.shfl_xor_sync(ALL_LANES, value, 1)
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


@cuda.jit(device=True)
def merge_moments(count, mean, deviations, other_count, other_mean, other_deviations):
    """(count, mean, sum of squared deviations from it) of two sets of numbers together, from those of each; either may be empty.

    Chan, Golub and LeVeque 1979, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", equations 1.5.
    """
    both = count + other_count
    share = other_count / max(both, float32(1))
    difference = other_mean - mean
    return both, mean + difference * share, deviations + other_deviations + difference * difference * count * share


@cuda.jit(device=True)
def warp_moments(count, mean, deviations):
    """`merge_moments` over the warp's 32 lanes, in every lane."""
    distance = 16
    while distance:
        other_count = cuda.shfl_xor_sync(ALL_LANES, count, distance)
        other_mean = cuda.shfl_xor_sync(ALL_LANES, mean, distance)
        other_deviations = cuda.shfl_xor_sync(ALL_LANES, deviations, distance)
        count, mean, deviations = merge_moments(count, mean, deviations, other_count, other_mean, other_deviations)
        distance >>= 1
    return count, mean, deviations


@cuda.jit(device=True)
def block_moments(count, mean, deviations, partials):
    """`merge_moments` over a one-dimensional block of whole warps, in every thread, with one barrier; partials: float32 [3, 32], shared."""
    lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
    count, mean, deviations = warp_moments(count, mean, deviations)
    if lane == 0:
        partials[0, warp], partials[1, warp], partials[2, warp] = count, mean, deviations
    cuda.syncthreads()
    if lane < cuda.blockDim.x >> 5:
        count, mean, deviations = partials[0, lane], partials[1, lane], partials[2, lane]
    else:
        count = mean = deviations = float32(0)
    return warp_moments(count, mean, deviations)
