"""A block's part of x in shared memory, as mma.sync's operand B: 16 bytes per token, word of codes, and lane.

    memory[step, w, token, t] = the eight inputs of word w of lane t (MmaDecoder)            followed by sums[step, group, token]

The 32 lanes of a warp read 512 adjacent bytes for eight tokens, or 64 for one, without bank conflicts. The sums of x over groups are added
by shuffles while x is copied. normed_x.py writes one row of x in the same order.

Source: PTX ISA, "Matrix fragments for mma.m16n8k16".
"""

from typing import NamedTuple

from numba import cuda, float32, int32, uint32

from minllm import ptx
from minllm.kernels.arguments import ceil_div
from minllm.kernels.matmul.quantized.tensor_core_gemv.tiling import TensorCoreGemvTiling
from minllm.kernels.quantization.decoder import INPUTS, MmaDecoder
from minllm.kernels.vector import load_words, vector_unpack
from minllm.tiles.warp import ALL_LANES, WARP

AT_A_TIME = 4  # vectors that a thread has in flight
WIDTH = 8  # numbers per vector
VECTORS, WORDS = 16, 4  # 16-byte vectors of x per row and step; words of codes per lane, row and step


def x_bytes(tiling: TensorCoreGemvTiling, steps: int, groups: int) -> int:
    """Return the bytes of a block's part of x and of its sums."""
    return 4 * (first_sum(tiling, steps) + tiling.steps_of_block(steps) * groups * tiling.tokens)


def first_sum(tiling: TensorCoreGemvTiling, steps: int) -> int:
    """Return the word of shared memory where the sums of a block's part of x begin."""
    return tiling.steps_of_block(steps) * tiling.tokens * VECTORS * 4


class Place(NamedTuple):
    """A vector's token, its position in that row of x, its first word in shared memory, and the number of its group's sum."""

    token: int
    vector: int
    word: int
    sum: int


def make_place_of(tiling: TensorCoreGemvTiling, groups: int):
    """place_of(number): the Place of a vector of the block's part of x.

    The 32 vectors of a warp are one step of two tokens: adjacent in each row of x, and eight at a time adjacent in shared memory.
    """
    tokens, twos, words_of_a_group = tiling.tokens, tiling.tokens // 2, WORDS // groups

    @cuda.jit(device=True, forceinline=True)
    def place_of(number):
        lane, word, step = number & uint32(3), number >> uint32(3) & uint32(3), uint32(number // uint32(VECTORS * tokens))
        token = (number >> uint32(5)) % uint32(twos) * uint32(2) + (number >> uint32(2) & uint32(1))
        group, of_group = word // uint32(words_of_a_group), word % uint32(words_of_a_group)
        vector = step * uint32(VECTORS) + (group * uint32(4) + lane) * uint32(words_of_a_group) + of_group
        place = ((step * uint32(WORDS) + word) * uint32(tokens) + token) * uint32(4) + lane
        number_of_sum = (step * uint32(groups) + group) * uint32(tokens) + token
        return Place(uint32(token), uint32(vector), uint32(place * uint32(4)), uint32(number_of_sum))

    return place_of


def make_store_sum(tiling: TensorCoreGemvTiling, decoder: MmaDecoder, steps: int, dtype: str):
    """Return the device function that stores the sum of a group, whose vectors lanes hold, times the decoder's unit of sums.

    words[at : at + 4]: the lane's vector. All lanes of a warp must call it.
    """
    unpack, words_of_a_group, unit, first = vector_unpack(dtype), WORDS // decoder.groups, decoder.unit_of_sums, first_sum(tiling, steps)
    of_a_group = {1: 3, 2: 3 | 8, 4: 3 | 8 | 16}[words_of_a_group]  # the bits in which lanes with vectors of the same group differ

    @cuda.jit(device=True, forceinline=True)
    def store_sum(words, at, place, memory):
        values, total = cuda.local.array(WIDTH, float32), float32(0)
        unpack(words, at, values, 0)
        for i in range(WIDTH):
            total += values[i]
        total += cuda.shfl_xor_sync(ALL_LANES, total, 1)
        total += cuda.shfl_xor_sync(ALL_LANES, total, 2)
        if words_of_a_group > 1:
            total += cuda.shfl_xor_sync(ALL_LANES, total, 8)
        if words_of_a_group > 2:
            total += cuda.shfl_xor_sync(ALL_LANES, total, 16)
        if int32(cuda.threadIdx.x) & of_a_group == 0:
            memory[uint32(place.sum + uint32(first))] = ptx.float_as_uint(total * float32(unit))

    return store_sum


def make_load_x(tiling: TensorCoreGemvTiling, decoder: MmaDecoder, k: int, dtype: str):
    """load_x(x, norm, epsilon, rank, memory): copy the part of x of the block with this rank in its cluster, and its sums; return 1.

    It goes through registers: cp.async takes five times as long if neighbours in x do not stay neighbours. norm, epsilon: not used.
    """
    steps, vectors_of_k, has_sums, pair_of_x = k // INPUTS, k // WIDTH, decoder.unit_of_sums > 0, decoder.pair_of_x
    threads, place_of, store_sum = tiling.threads, make_place_of(tiling, decoder.groups), make_store_sum(tiling, decoder, steps, dtype)
    vectors = tiling.steps_of_block(steps) * VECTORS
    all_vectors = tiling.tokens * vectors
    at_a_time = min(AT_A_TIME, ceil_div(all_vectors, threads))
    words_at_a_time, all_are_there = 4 * at_a_time, all_vectors % (threads * at_a_time) == 0

    @cuda.jit(device=True, forceinline=True)
    def load(x, first, place, words, at):
        """words[at : at + 4] = a vector of x, or any past the edges: an `if` here would wait for the load before it."""
        token, vector = min(int32(place.token), int32(x.shape[0] - 1)), min(uint32(first + place.vector), uint32(vectors_of_k - 1))
        load_words(x, uint32((uint32(token) * uint32(vectors_of_k) + vector) * uint32(8)), words, at)

    @cuda.jit(device=True, forceinline=True)
    def store(x, first, place, words, at, memory):
        """Store a loaded vector, or zeros past the end of a row and past the last token."""
        if not (int32(place.token) < int32(x.shape[0]) and uint32(first + place.vector) < uint32(vectors_of_k)):
            for i in range(4):
                words[at + i] = uint32(0)
        if has_sums:
            store_sum(words, at, place, memory)
        one, two, three, four = words[at], words[at + 1], words[at + 2], words[at + 3]
        ptx.store_128(memory, place.word, pair_of_x(one, 0), pair_of_x(two, 1), pair_of_x(three, 2), pair_of_x(four, 3))

    @cuda.jit(device=True, forceinline=True)
    def load_x(x, norm, epsilon, rank, memory):
        ptx.griddepcontrol_wait()
        first, words = uint32(uint32(rank) * uint32(vectors)), cuda.local.array(words_at_a_time, uint32)
        for begin in range(int32(cuda.threadIdx.x), all_vectors, threads * at_a_time):
            for i in range(at_a_time):
                load(x, first, place_of(uint32(begin + i * threads)), words, 4 * i)
            for i in range(at_a_time):
                number = uint32(begin + i * threads)
                if all_are_there or number < uint32(all_vectors):
                    store(x, first, place_of(number), words, 4 * i, memory)
        cuda.syncthreads()
        return float32(1)

    return load_x


def make_load_word(tiling: TensorCoreGemvTiling):
    """load_word(memory, step, w, b): a lane loads its inputs of word w of a step, for its column of each eight tokens."""
    tokens, blocks = tiling.tokens, tiling.tokens // 8

    @cuda.jit(device=True, forceinline=True)
    def load_word(memory, step, w, b):
        lane = uint32(cuda.threadIdx.x) & uint32(WARP - 1)
        at = uint32(uint32(step) * uint32(WORDS * tokens * 16) + lane * uint32(4) + uint32(w * tokens * 16))
        for block in range(blocks):
            load_words(memory, uint32(at + uint32(block * WARP * 4)), b, 4 * block)

    return load_word
