"""Device functions that quantise numbers in registers, eight neighbouring ones per lane: of heads in a cache, and of rows of a weight.

A lane loads its numbers by 16-byte loads. The extremes of a group that is spread over several lanes are found by shuffles between them
(tiles/warp.py does the same for sums). Adding 1.5 * 2**23 rounds as rint does, ties to even.
"""

import functools

from numba import cuda, uint32

from minllm.kernels.vector import vector_access
from minllm.ptx import prmt
from minllm.tiles.warp import ALL_LANES

EACH = 8  # numbers per lane
ROUNDING = 12582912.0  # 1.5 * 2**23: a float32 of this size has no fraction bits, so adding it rounds, ties to even


@functools.cache
def make_load_each(dtype):
    """The device function load_each(array, index, values): EACH numbers from flat `index` on, as float32."""
    width, load, _ = vector_access(dtype)

    @cuda.jit(device=True)
    def load_each(array, index, values):
        for k in range(0, EACH, width):
            load(array, index + k, values, k)

    return load_each


@functools.cache
def make_extremes(lanes):
    """The device function extremes(values): (minimum, maximum) of the numbers of `lanes` neighbouring lanes, a power of two.

    The whole warp must call it.
    """

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


@cuda.jit(device=True)
def pack_nibbles_of(bits):
    """Pack eight rounded 4-bit codes into a word: components 2i and 2i + 1 are nibbles i and i + 4."""
    word = uint32(0)
    for i in range(EACH // 2):
        word |= (prmt(bits[2 * i], bits[2 * i + 1], uint32(0x5410)) & uint32(0x000F000F)) << uint32(4 * i)
    return word
