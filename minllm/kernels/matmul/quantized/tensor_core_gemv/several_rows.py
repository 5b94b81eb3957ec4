"""Products of 2 to 16 rows of x with codes that become 16-bit numbers.

One of the four lanes of a row loads the data of a group, converts them to a Scale before the chunk, and passes that on by a shuffle: each
lane has the sums of other tokens, and needs the Scales of every group.
"""

import functools

from numba import cuda, float32, uint32

from minllm import ptx
from minllm.kernels.arguments import ceil_div
from minllm.kernels.matmul.fragments import MULTIPLY
from minllm.kernels.matmul.quantized.tensor_core_gemv.loads import CODE_WORDS, WORDS, make_load_scales
from minllm.kernels.matmul.quantized.tensor_core_gemv.products import Products, finish_nothing, scale_nothing
from minllm.kernels.matmul.quantized.tensor_core_gemv.tiling import TensorCoreGemvTiling
from minllm.kernels.matmul.quantized.tensor_core_gemv.x import first_sum, make_load_word, make_load_x, x_bytes
from minllm.kernels.quantization.decoder import INPUTS, MmaDecoder
from minllm.tiles.warp import ALL_LANES


def make_multiply_group(tiling: TensorCoreGemvTiling, decoder: MmaDecoder, dtype: str):
    """Return the device function: sums[0 : 4 * blocks] = the numbers of one group of a step, times x."""
    load_word, multiply, pair, words_of_a_group = make_load_word(tiling), MULTIPLY[dtype], decoder.pair, WORDS // decoder.groups
    blocks = tiling.tokens // 8
    four_of_each = 4 * blocks

    @cuda.jit(device=True, forceinline=True)
    def multiply_group(memory, decoding, codes, at, step, group, sums):
        """codes[at : at + 4] are the codes of row low in this step, codes[at + 4 : at + 8] those of row high."""
        a, b = cuda.local.array(4, uint32), cuda.local.array(four_of_each, uint32)
        for i in range(four_of_each):
            sums[i] = float32(0)
        for i in range(words_of_a_group):
            word = at + group * words_of_a_group + i
            load_word(memory, step, group * words_of_a_group + i, b)
            for j in range(2):
                for half in range(2):
                    a[2 * half] = pair(decoding, codes[word], 2 * j + half)
                    a[2 * half + 1] = pair(decoding, codes[word + WORDS], 2 * j + half)
                for block in range(blocks):
                    multiply(sums, 4 * block, a, 0, b, 4 * block + 2 * j)

    return multiply_group


def make_multiply(tiling: TensorCoreGemvTiling, decoder: MmaDecoder, steps: int, dtype: str):
    """Return Products.multiply: total[0 : 4 * blocks] += the scaled sums of a step."""
    groups, blocks, tokens, first = decoder.groups, tiling.tokens // 8, tiling.tokens, first_sum(tiling, steps)
    multiply_group, add, four_of_each = make_multiply_group(tiling, decoder, dtype), decoder.add, 4 * blocks
    has_sums, has_offsets = decoder.unit_of_sums > 0, decoder.has_offsets

    @cuda.jit(device=True, forceinline=True)
    def passed_on(values, entry, row, which):
        """Return a Scale's factor (which = 0) or offset (1), held by lane entry % 4 of the row."""
        source = (uint32(cuda.threadIdx.x) & uint32(28)) | uint32(entry % 4)
        return cuda.shfl_sync(ALL_LANES, values[(entry // 4 * 2 + row) * 2 + which], source)

    @cuda.jit(device=True, forceinline=True)
    def sum_of_x(memory, step, group, block, column):
        """Return the sum of x over a group for one of the lane's tokens, or 0 if the format needs none."""
        if not has_sums:
            return float32(0)
        token = uint32(8 * block + column) + (uint32(cuda.threadIdx.x) & uint32(3)) * uint32(2)
        place = uint32(uint32(step) * uint32(groups * tokens) + token + uint32(first + group * tokens))
        return ptx.uint_as_float(memory[place])

    @cuda.jit(device=True, forceinline=True)
    def add_group(memory, values, u, step, group, sums, total):
        entry = u * groups + group
        for row in range(2):
            factor, offset = passed_on(values, entry, row, 0), float32(0)
            if has_offsets:
                offset = passed_on(values, entry, row, 1)
            for block in range(blocks):
                for column in range(2):
                    at = 4 * block + 2 * row + column
                    total[at] = add(total[at], factor, offset, sums[at], sum_of_x(memory, step, group, block, column))

    @cuda.jit(device=True, forceinline=True)
    def multiply_step(u, memory, decoding, registers, step):
        sums = cuda.local.array(four_of_each, float32)
        for group in range(groups):
            multiply_group(memory, decoding, registers.codes, u * CODE_WORDS, step, group, sums)
            add_group(memory, registers.values, u, step, group, sums, registers.total)

    return multiply_step


@functools.cache
def make_products_of_rows(decoder: MmaDecoder, k: int, tiling: TensorCoreGemvTiling, dtype: str) -> Products:
    """Return the Products of a format's numbers with up to `tiling.tokens` rows of x in `dtype`."""
    steps, groups, words_of_a_group, scale_of = k // INPUTS, decoder.groups, decoder.words, decoder.scale
    loads = ceil_div(tiling.unroll * groups, 4)  # of one group in each row

    @cuda.jit(device=True, forceinline=True)
    def place_of(index, j):
        """Return the step, of a chunk's, and the group whose data this lane loads."""
        number = (uint32(cuda.threadIdx.x) & uint32(3)) + uint32(4 * index)
        return number // uint32(groups), number % uint32(groups)

    @cuda.jit(device=True, forceinline=True)
    def convert(decoding, kept, registers):
        """values = the Scales in the words that have arrived."""
        words, values = registers.words, registers.values
        for i in range(loads):
            low = scale_of(decoding, kept.low, words, 2 * i * words_of_a_group)
            high = scale_of(decoding, kept.high, words, (2 * i + 1) * words_of_a_group)
            values[4 * i], values[4 * i + 1], values[4 * i + 2], values[4 * i + 3] = low.factor, low.offset, high.factor, high.offset

    return Products(
        steps, groups, x_bytes(tiling, steps, groups), 2 * loads * words_of_a_group, 4 * loads, float32, decoder.table,
        make_load_x(tiling, decoder, k, dtype), decoder.begin, loads, make_load_scales(tiling, decoder, steps, 1, place_of), convert,
        make_multiply(tiling, decoder, steps, dtype), 0, scale_nothing, finish_nothing,
    )  # fmt: skip
