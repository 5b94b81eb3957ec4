"""One step of a warp: mma.sync of 16 rows of weight by x for all tokens, then the scales of groups."""

from numba import cuda, float32, uint32

from minllm import ptx
from minllm.kernels.matmul.fragments import MULTIPLY
from minllm.kernels.matmul.quantized.batched_gemv.tiling import BatchedGemvTiling
from minllm.kernels.matmul.quantized.batched_gemv.x import WORDS, make_load_word
from minllm.kernels.quantization.decoder import BatchedDecoder
from minllm.tiles.warp import ALL_LANES


def make_multiply_group(tiling: BatchedGemvTiling, decoder: BatchedDecoder, dtype: str):
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


def make_multiply_step(tiling: BatchedGemvTiling, decoder: BatchedDecoder, dtype: str, first_sum: int):
    """Return the device function: total[0 : 4 * blocks] += the u-th step in flight; lanes hold its scales."""
    groups, blocks, tokens = decoder.groups, tiling.tokens // 8, tiling.tokens
    multiply_group, add, four_of_each = make_multiply_group(tiling, decoder, dtype), decoder.add, 4 * blocks
    has_sums, has_offsets = decoder.has_sums, decoder.has_offsets

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
        place = uint32(uint32(step) * uint32(groups * tokens) + token + uint32(first_sum + group * tokens))
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
    def multiply_step(memory, decoding, codes, at, values, u, step, total):
        sums = cuda.local.array(four_of_each, float32)
        for group in range(groups):
            multiply_group(memory, decoding, codes, at, step, group, sums)
            add_group(memory, values, u, step, group, sums, total)

    return multiply_step
