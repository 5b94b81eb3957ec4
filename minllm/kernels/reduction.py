"""Sums and maxima over a block: within each warp by shuffles, then across warps through shared memory."""

from numba import cuda, float32

from minllm.tiles.warp import warp_max, warp_sum


@cuda.jit(device=True)
def block_sum(value, partials):
    """The sum of `value` over a one-dimensional block of whole warps, in every thread.

    partials: float32 [32] in shared memory; use a separate array for each call in a kernel, because there is only one barrier.
    """
    lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
    value = warp_sum(value)
    if lane == 0:
        partials[warp] = value
    cuda.syncthreads()
    # Every warp adds up the partial sums itself: cheaper than a second barrier.
    return warp_sum(partials[lane] if lane < cuda.blockDim.x >> 5 else float32(0))


@cuda.jit(device=True)
def block_max(value, partials):
    """The maximum of `value`, which must not be negative, over a block, in every thread; arguments as in block_sum."""
    lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
    value = warp_max(value)
    if lane == 0:
        partials[warp] = value
    cuda.syncthreads()
    return warp_max(partials[lane] if lane < cuda.blockDim.x >> 5 else float32(0))


@cuda.jit(device=True)
def block_moments(count, mean, deviations, numbers, partials):
    """(mean, sum of squared deviations from it) of all `numbers` numbers of a block of whole warps, in every thread, with one barrier.

    count, mean, deviations: the warp's count of numbers, their mean and the sum of their squared deviations from it.
    partials: float32 [3, 32] in shared memory. Source: Chan, Golub and LeVeque 1979, "Updating Formulae and a Pairwise Algorithm for
    Computing Sample Variances", equation 1.5, for many sets at once: moving a set's mean by distance adds count * distance**2 to its
    deviations.
    """
    lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
    if lane == 0:
        partials[0, warp], partials[1, warp], partials[2, warp] = count, mean, deviations
    cuda.syncthreads()
    count = mean = deviations = float32(0)
    if lane < cuda.blockDim.x >> 5:  # one lane per warp, in every warp
        count, mean, deviations = partials[0, lane], partials[1, lane], partials[2, lane]
    mean_of_all = warp_sum(count * mean) / float32(numbers)
    return mean_of_all, warp_sum(deviations + count * (mean - mean_of_all) * (mean - mean_of_all))
