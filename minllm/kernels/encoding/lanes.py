"""What the encoders share: eight neighbouring inputs per lane, and minima and maxima over the lanes of a group.

A group of 32, 64 or 128 inputs has 4, 8 or 16 neighbouring lanes of one warp, so that its extremes take two to four shuffles. A lane loads
16 or 32 bytes and stores one 32-bit word of codes.
"""

import functools

from numba import cuda

from minllm.kernels.arguments import FLOAT_DTYPES, ceil_div, check_array
from minllm.kernels.vector import vector_access, vectors_per_row
from minllm.runtime.kernel import check
from minllm.tiles.warp import ALL_LANES

EACH = 8  # inputs per lane
THREADS = 128


@functools.cache
def make_load_inputs(dtype):
    """The device function load_inputs(matrix, index, values): EACH inputs from flat `index` on, as float32."""
    width, load, _ = vector_access(dtype)

    @cuda.jit(device=True)
    def load_inputs(matrix, index, values):
        for k in range(0, EACH, width):
            load(matrix, index + k, values, k)

    return load_inputs


@functools.cache
def make_extremes(lanes):
    """The device function extremes(values): (smallest, largest) of the inputs of `lanes` neighbouring lanes. All lanes must call it."""

    @cuda.jit(device=True)
    def extremes(values):
        low, high = values[0], values[0]
        for k in range(1, EACH):
            low, high = min(low, values[k]), max(high, values[k])
        distance = lanes >> 1
        while distance:
            low = min(low, cuda.shfl_xor_sync(ALL_LANES, low, distance))
            high = max(high, cuda.shfl_xor_sync(ALL_LANES, high, distance))
            distance >>= 1
        return low, high

    return extremes


def grid_of(matrix, group):
    """(blocks of a launch with THREADS threads) for a matrix [outputs, inputs], a lane per EACH inputs.

    Raises KernelArgumentError for another dtype than float32, float16 and bfloat16, inputs that are not whole groups, and unaligned rows.
    """
    check_array("matrix", matrix, FLOAT_DTYPES, outputs=None, inputs=None)
    outputs, inputs = matrix.shape
    check(inputs % group == 0, f"{inputs} inputs are not whole groups of {group}")
    check(vectors_per_row(inputs, matrix) > 0, f"rows of {inputs} inputs are not aligned to 16 bytes")
    return ceil_div(inputs // EACH, THREADS), outputs
