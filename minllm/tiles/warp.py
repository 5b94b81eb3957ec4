"""Sums and maxima over the lanes (threads) of a warp, by shuffles (CUDA C++ Programming Guide, "Warp Shuffle Functions").

The accumulators of mma are distributed over rows of four lanes: lane % 4 determines the columns, lane // 4 the row.
"""

from numba import cuda

WARP = 32  # lanes per warp
ALL_LANES = 0xFFFFFFFF  # the mask of a shuffle or vote in which all lanes of the warp take part


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
def warp_max(value):
    """The largest `value` over the warp's lanes, in every lane."""
    for distance in (16, 8, 4, 2, 1):
        value = max(value, cuda.shfl_xor_sync(ALL_LANES, value, distance))
    return value


@cuda.jit(device=True)
def sum_of_row(value):
    """The sum of `value` over the four lanes of a row."""
    value += cuda.shfl_xor_sync(ALL_LANES, value, 1)
    return value + cuda.shfl_xor_sync(ALL_LANES, value, 2)


@cuda.jit(device=True)
def maximum_of_row(value):
    """The largest `value` of the four lanes of a row."""
    value = max(value, cuda.shfl_xor_sync(ALL_LANES, value, 1))
    return max(value, cuda.shfl_xor_sync(ALL_LANES, value, 2))


@cuda.jit(device=True)
def sum_over_rows(value):
    """The sum of a column's values over the eight rows of lanes."""
    value += cuda.shfl_xor_sync(ALL_LANES, value, 4)
    value += cuda.shfl_xor_sync(ALL_LANES, value, 8)
    return value + cuda.shfl_xor_sync(ALL_LANES, value, 16)


@cuda.jit(device=True)
def maximum_over_rows(value):
    """The largest of a column's values over the eight rows of lanes."""
    value = max(value, cuda.shfl_xor_sync(ALL_LANES, value, 4))
    value = max(value, cuda.shfl_xor_sync(ALL_LANES, value, 8))
    return max(value, cuda.shfl_xor_sync(ALL_LANES, value, 16))
