"""Products of one row of x with codes that become 16-bit numbers, and which lane scales the sums of a step.

All columns of x are equal, so with groups of a step or more the four lanes of a row have the same sums. Each lane keeps those of one step
in four, and loads the scales of this step alone. If groups divide a step, column g holds only the inputs of group g % groups, and zeros
elsewhere, so that the columns of the result are the sums of the groups: a lane has the sums of one or two groups of a step, and keeps those
of one step in four (two groups) or in two (four groups). The `unroll` steps in flight divide evenly into groups of steps that are shared in
this way. At the end of a tile the sums of the four lanes are added.
"""

import functools
import math

from numba import cuda, float32, int32, uint32

from minllm import ptx
from minllm.kernels.matmul.fragments import MULTIPLY
from minllm.kernels.matmul.quantized.tensor_core_gemv.loads import CODE_WORDS, WORDS, make_load_scales
from minllm.kernels.matmul.quantized.tensor_core_gemv.normed_x import make_prepare_numbers
from minllm.kernels.matmul.quantized.tensor_core_gemv.products import Products, convert_nothing
from minllm.kernels.matmul.quantized.tensor_core_gemv.tiling import TensorCoreGemvTiling
from minllm.kernels.matmul.quantized.tensor_core_gemv.x import first_sum, x_bytes
from minllm.kernels.quantization.decoder import INPUTS, MmaDecoder
from minllm.kernels.vector import load_words
from minllm.tiles.warp import ALL_LANES


def make_multiply(dtype: str, groups: int, shared_steps: int, pair):
    """Return Products.multiply: values[0 : 4] = the sums of a step, if it is this lane's of the `shared_steps`."""
    multiply, lanes = MULTIPLY[dtype], 4 // groups

    @cuda.jit(device=True, forceinline=True)
    def is_mine():
        """Whether a lane's inputs of x belong to its column's group of a step."""
        lane = uint32(cuda.threadIdx.x) & uint32(31)
        return groups == 1 or (lane & uint32(3)) // uint32(lanes) == (lane >> uint32(2)) % uint32(groups)

    @cuda.jit(device=True, forceinline=True)
    def multiply_step(u, memory, decoding, registers, step):
        a, b, sums = cuda.local.array(4, uint32), cuda.local.array(4, uint32), cuda.local.array(8, float32)
        quarter, codes = int32(cuda.threadIdx.x) & 3, registers.codes
        for i in range(8):
            sums[i] = float32(0)
        for word in range(WORDS):
            for i in range(4):
                b[i] = uint32(0)
            if is_mine():
                load_words(memory, step * (INPUTS // 2) + quarter * 4 + 16 * word, b, 0)
            at = u * CODE_WORDS + word
            for j in range(2):  # two chains of sums, so that neither waits for the other
                for half in range(2):
                    a[2 * half] = pair(decoding, codes[at], 2 * j + half)
                    a[2 * half + 1] = pair(decoding, codes[at + WORDS], 2 * j + half)
                multiply(sums, 4 * j, a, 0, b, 2 * j)
        if quarter * shared_steps >> 2 == u % shared_steps:
            for i in range(4):
                registers.values[i] = sums[i] + sums[4 + i]

    return multiply_step


def make_finish(groups: int, shared_steps: int):
    """Return Products.finish: add up the lanes of a row that have scaled different steps or groups."""

    @cuda.jit(device=True, forceinline=True)
    def sum_of_lanes(value):
        if groups == 4 or shared_steps == 4:
            value += cuda.shfl_xor_sync(ALL_LANES, value, 1)
        if shared_steps > 1:
            value += cuda.shfl_xor_sync(ALL_LANES, value, 2)
        return float32(value)

    @cuda.jit(device=True, forceinline=True)
    def finish(kept, total, factor):
        return factor * sum_of_lanes(total[0]), factor * sum_of_lanes(total[2])

    return finish


@functools.cache
def make_products_of_one_row(decoder: MmaDecoder, k: int, tiling: TensorCoreGemvTiling, dtype: str) -> Products:
    """Return the Products of a format's numbers with one row of x in `dtype`."""
    steps, groups, splits, words_of_a_group = k // INPUTS, decoder.groups, tiling.splits, decoder.words
    shared_steps, each = math.gcd(tiling.unroll, 4 if groups < 4 else 2), min(2, groups)  # of a lane: groups of one step in shared_steps
    add, scale_of, has_sums, sums_at = decoder.add, decoder.scale, decoder.unit_of_sums > 0, first_sum(tiling, steps)
    loads = tiling.unroll // shared_steps

    @cuda.jit(device=True, forceinline=True)
    def place_of(index, j):
        """Return the step, of a chunk's, and the group for which this lane scales the j-th sum of the index-th group of steps."""
        quarter = uint32(cuda.threadIdx.x) & uint32(3)
        group = (quarter & uint32(1)) << uint32(1) if groups == 4 else uint32(0)
        return uint32(uint32(index * shared_steps) + (quarter * uint32(shared_steps) >> uint32(2))), uint32(group + uint32(j))

    @cuda.jit(device=True, forceinline=True)
    def scale(index, memory, decoding, kept, registers, first):
        total = registers.total
        for j in range(each):
            (step, group), sum_of_x = place_of(index, j), float32(0)
            if has_sums:
                sum_of_x = ptx.uint_as_float(
                    memory[uint32((uint32(first) + step * uint32(splits)) * uint32(groups) + group + uint32(sums_at))]
                )
            for row in range(2):
                at = (2 * (index * each + j) + row) * words_of_a_group
                factor, offset = scale_of(decoding, kept.high if row else kept.low, registers.words, at)
                total[2 * row] = add(total[2 * row], factor, offset, registers.values[2 * row + j], sum_of_x)

    return Products(
        steps, 1, x_bytes(tiling, steps, groups), 2 * loads * each * words_of_a_group, 4, float32, decoder.table,
        make_prepare_numbers(tiling, decoder, k, dtype), decoder.begin, loads, make_load_scales(tiling, decoder, steps, each, place_of),
        convert_nothing, make_multiply(dtype, groups, shared_steps, decoder.pair), shared_steps, scale, make_finish(groups, shared_steps),
    )  # fmt: skip
