"""A block's part of x in shared memory, as mma.sync's operand B: 16 bytes per token, word of codes, and lane.

    memory[step, w, token, t] = the eight inputs of word w of lane t (decoder.py)            followed by sums[step, group, token]

The 32 lanes of a warp read 512 adjacent bytes for eight tokens, without bank conflicts. mma.sync also computes the sums of x over groups.

Source: PTX ISA, "Matrix fragments for mma.m16n8k16".
"""

from typing import Any, NamedTuple

from numba import cuda, float32, int32, uint32

from minllm import ptx
from minllm.kernels.arguments import ceil_div
from minllm.kernels.matmul.fragments import MULTIPLY
from minllm.kernels.matmul.quantized.batched_gemv.tiling import BatchedGemvTiling
from minllm.kernels.vector import load_words
from minllm.tiles.warp import WARP

ALL_ONE = 0x11111111  # a word of eight codes of 1
AT_A_TIME = 4  # vectors that a thread has in flight
VECTORS, WORDS = 16, 4  # 16-byte vectors of x per row and step; words of codes per lane, row and step


def x_bytes(tiling: BatchedGemvTiling, steps: int, groups: int) -> int:
    """Return the bytes of a block's part of x and of its sums."""
    return tiling.steps_of_block(steps) * tiling.tokens * (VECTORS * 16 + groups * 4)


class Place(NamedTuple):
    """A vector's token and its position in that row of x, and its first word in shared memory."""

    token: Any
    vector: Any
    word: Any


def make_place_of(tiling: BatchedGemvTiling, groups: int):
    """place_of(number): the Place of a vector of the block's part of x.

    The 32 vectors of a warp belong to four tokens, two words of codes and the four lanes of a row: whole sectors of x, and in shared memory
    eight adjacent vectors at a time.
    """
    tokens, fours, words_of_a_group = tiling.tokens, tiling.tokens // 4, WORDS // groups

    @cuda.jit(device=True, forceinline=True)
    def place_of(number):
        lane, two_words = number & uint32(3), uint32(number // uint32(8 * tokens))  # two words have 8 vectors per token
        token = (number >> uint32(5)) % uint32(fours) * uint32(4) + (number >> uint32(2) & uint32(3))
        step, word = two_words >> uint32(1), (two_words & uint32(1)) << uint32(1) | number >> uint32(4) & uint32(1)
        group, of_group = word // uint32(words_of_a_group), word % uint32(words_of_a_group)
        vector = step * uint32(VECTORS) + (group * uint32(4) + lane) * uint32(words_of_a_group) + of_group
        place = ((step * uint32(WORDS) + word) * uint32(tokens) + token) * uint32(4) + lane
        return Place(uint32(token), uint32(vector), uint32(place * uint32(4)))

    return place_of


def make_load_x(tiling: BatchedGemvTiling, k: int, steps: int, groups: int, pair_of_x):
    """load_x(x, rank, memory): copy the part of x of the block with this rank in its cluster to shared memory.

    It goes through registers: cp.async takes five times as long if neighbours in x do not stay neighbours.
    """
    threads, place_of, vectors, vectors_of_k = tiling.threads, make_place_of(tiling, groups), tiling.steps_of_block(steps) * VECTORS, k // 8
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
        there = int32(place.token) < int32(x.shape[0]) and uint32(first + place.vector) < uint32(vectors_of_k)
        one, two = pair_of_x(words[at], 0) if there else uint32(0), pair_of_x(words[at + 1], 1) if there else uint32(0)
        three, four = pair_of_x(words[at + 2], 2) if there else uint32(0), pair_of_x(words[at + 3], 3) if there else uint32(0)
        ptx.store_128(memory, place.word, one, two, three, four)

    @cuda.jit(device=True, forceinline=True)
    def load_x(x, rank, memory):
        first, words = uint32(uint32(rank) * uint32(vectors)), cuda.local.array(words_at_a_time, uint32)
        for begin in range(int32(cuda.threadIdx.x), all_vectors, threads * at_a_time):
            for i in range(at_a_time):
                load(x, first, place_of(uint32(begin + i * threads)), words, 4 * i)
            for i in range(at_a_time):
                number = uint32(begin + i * threads)
                if all_are_there or number < uint32(all_vectors):
                    store(x, first, place_of(number), words, 4 * i, memory)

    return load_x


def make_load_word(tiling: BatchedGemvTiling):
    """load_word(memory, step, w, b): a lane loads its inputs of word w of a step, for its column of each eight tokens."""
    tokens, blocks = tiling.tokens, tiling.tokens // 8

    @cuda.jit(device=True, forceinline=True)
    def load_word(memory, step, w, b):
        lane = uint32(cuda.threadIdx.x) & uint32(WARP - 1)
        at = uint32(uint32(step) * uint32(WORDS * tokens * 16) + lane * uint32(4) + uint32(w * tokens * 16))
        for block in range(blocks):
            load_words(memory, uint32(at + uint32(block * WARP * 4)), b, 4 * block)

    return load_word


def make_sum_x(tiling: BatchedGemvTiling, steps: int, groups: int, pair, dtype: str):
    """Return (sum_x, first): the device function that sums x over groups, and the word where the sums begin.

    mma.sync computes the sums as x times a weight of codes of 1.
    """
    tokens, warps, steps_of_block, blocks = tiling.tokens, tiling.warps, tiling.steps_of_block(steps), tiling.tokens // 8
    load_word, multiply, words_of_a_group, first = make_load_word(tiling), MULTIPLY[dtype], WORDS // groups, steps_of_block * tokens * 64
    four_of_each = 4 * blocks

    @cuda.jit(device=True, forceinline=True)
    def sum_group(memory, step, group, a):
        b, sums = cuda.local.array(four_of_each, uint32), cuda.local.array(four_of_each, float32)
        for i in range(four_of_each):
            sums[i] = float32(0)
        for w in range(words_of_a_group):
            load_word(memory, step, group * words_of_a_group + w, b)
            for block in range(blocks):
                multiply(sums, 4 * block, a, 0, b, 4 * block)
                multiply(sums, 4 * block, a, 0, b, 4 * block + 2)
        lane = int32(cuda.threadIdx.x) & (WARP - 1)
        if lane < 4:  # these lanes hold row 0; all rows are equal
            at = int32(first + (step * groups + group) * tokens + 2 * lane)
            for block in range(blocks):
                ptx.store_64(memory, int32(at + 8 * block), ptx.float_as_uint(sums[4 * block]), ptx.float_as_uint(sums[4 * block + 1]))

    @cuda.jit(device=True, forceinline=True)
    def sum_x(memory, decoding):
        """Sum x over all groups; the warps of the block divide the steps."""
        a = cuda.local.array(4, uint32)
        for i in range(4):
            a[i] = pair(decoding, uint32(ALL_ONE), i // 2)
        for step in range(int32(cuda.threadIdx.x) // WARP, steps_of_block, warps):
            for group in range(groups):
                sum_group(memory, int32(step), group, a)

    return sum_x, first
