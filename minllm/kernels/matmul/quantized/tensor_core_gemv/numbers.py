"""mma.sync of codes that become 16-bit floats in a lane, and which lane scales the sums of a step.

All columns of x are equal, so with groups of a step or more the four lanes of a row have the same sums. Each lane keeps those of one step
in four, and loads the scales of this step alone. So one load per row serves four steps: every load of a warp costs L1 one cycle per row,
however few bytes it takes. If groups divide a step, a lane has the sums of one or two parts of it, and keeps those of one step in four (two
parts) or in two (four parts). The `unroll` steps in flight divide evenly into groups of steps that are shared in this way. At the end of a
tile the sums of the four lanes are added.
"""

import functools
import math

from numba import cuda, float32, int32, uint32

from minllm.kernels.matmul.fragments import MULTIPLY
from minllm.kernels.matmul.quantized.tensor_core_gemv.activations import make_prepare_numbers
from minllm.kernels.matmul.quantized.tensor_core_gemv.operand import CODE_WORDS, Operand
from minllm.kernels.quantization.decoder import INPUTS, Format, Shares
from minllm.kernels.vector import load_words
from minllm.tiles.warp import ALL_LANES


def make_shares(parts: int, unroll: int) -> Shares:
    """Return the Shares of steps of 1, 2 or 4 parts, `unroll` of them in flight."""
    group = math.gcd(unroll, 4 if parts < 4 else 2)

    @cuda.jit(device=True, forceinline=True)
    def own_step():
        return int32((int32(cuda.threadIdx.x) & 3) * group >> 2)

    @cuda.jit(device=True, forceinline=True)
    def first_part():
        return uint32((uint32(cuda.threadIdx.x) & uint32(1)) << uint32(1)) if parts == 4 else uint32(0)

    @cuda.jit(device=True, forceinline=True)
    def sum_of_lanes(value):
        if parts == 4 or group == 4:
            value += cuda.shfl_xor_sync(ALL_LANES, value, 1)
        if group > 1:
            value += cuda.shfl_xor_sync(ALL_LANES, value, 2)
        return float32(value)

    return Shares(group, min(2, parts), own_step, first_part, sum_of_lanes)


def make_is_mine(parts: int):
    """is_mine(): whether a lane's inputs of x belong to its column's part of a step."""
    lanes = 4 // parts

    @cuda.jit(device=True, forceinline=True)
    def is_mine():
        lane = uint32(cuda.threadIdx.x) & uint32(31)
        return parts == 1 or (lane & uint32(3)) // uint32(lanes) == (lane >> uint32(2)) % uint32(parts)

    return is_mine


def make_multiply(dtype: str, parts: int, shares: Shares, pair_of, odd_scale: int = 1):
    """Return Operand.multiply of a format.

    pair_of(decoder, word, i): the i-th pair of 16-bit floats of a word of codes. odd_scale: factor by which the numbers of odd pairs are
    too large.
    """
    multiply, is_mine, group, inverse = MULTIPLY[dtype], make_is_mine(parts), shares.group, 1 / odd_scale

    @cuda.jit(device=True, forceinline=True)
    def multiply_step(memory, decoder, held, u, step, sums):
        a, b, products = cuda.local.array(4, uint32), cuda.local.array(4, uint32), cuda.local.array(8, float32)
        own, at = step * (INPUTS // 2) + (int32(cuda.threadIdx.x) & 3) * 4, u * CODE_WORDS
        for i in range(8):
            products[i] = float32(0)
        for i in range(4):
            for word in range(4):
                b[word] = uint32(0)
            if is_mine():
                load_words(memory, own + 16 * i, b, 0)
            for j in range(2):  # even and odd pairs: two chains of sums, so that neither waits for the other
                for half in range(2):
                    a[2 * half] = pair_of(decoder, held.codes[at + i], j + 2 * half)
                    a[2 * half + 1] = pair_of(decoder, held.codes[at + 4 + i], j + 2 * half)
                multiply(products, 4 * j, a, 0, b, 2 * j)
        if shares.own_step() == u % group:
            for i in range(4):
                sums.unscaled[i] = products[i] + products[4 + i] * float32(inverse)

    return multiply_step


@functools.cache
def make_numbers_operand(found: Format, kind: tuple, k: int, tiling, dtype: str) -> Operand:
    """Return the Operand of weights of this kind whose codes become numbers of `dtype`."""
    shares_of = functools.cache(lambda parts: make_shares(parts, tiling.unroll))
    decoder, padded_steps = found.gemv(dtype, tiling.threads, shares_of, *kind), tiling.padded_steps(k // INPUTS)
    parts, padded_k, words, add = decoder.parts, padded_steps * INPUTS, decoder.words, decoder.add
    shares, sums_at = shares_of(parts), padded_k // 2
    first_part, sum_of_lanes = shares.first_part, shares.sum_of_lanes

    @cuda.jit(device=True, forceinline=True)
    def scale(memory, decoding, kept, held, index, step, sums):
        first_sum = uint32(uint32(step) * uint32(parts) + first_part() + uint32(sums_at))
        add(decoding, kept, held.scales, index * words, memory, first_sum, sums)

    @cuda.jit(device=True, forceinline=True)
    def finish(kept, total, factor):
        return factor * sum_of_lanes(total[0]), factor * sum_of_lanes(total[2])

    units = decoder.unit_of_x, decoder.unit_of_sums
    prepare = make_prepare_numbers(k, padded_k, tiling.threads, dtype, parts, *units)
    multiply = make_multiply(dtype, parts, shares, decoder.pair, decoder.odd_scale)
    x_bytes = padded_k * 2 + padded_steps * parts * 4
    return Operand(
        k // INPUTS, k // 2, shares.group, words, x_bytes, decoder.table, float32, prepare, decoder.begin, shares.own_step, decoder.load,
        multiply, scale, finish,
    )  # fmt: skip
