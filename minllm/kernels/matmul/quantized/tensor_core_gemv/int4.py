"""int4 (W4A16) as an operand of mma.sync: a shift and a lop3 make a pair of codes a pair of 16-bit floats, offset + code.

    low = sum over groups of scale[low, g] * (sum over the group of x[k] * (offset + code[low, k]) - (offset + zero[low, g]) * sum of x[k])

with minimums, which some files store in place of zeros:

    low = sum over groups of scale[low, g] * (the same - offset * sum of x[k]) + minimum[low, g] * sum of x[k]

A step is 128 inputs: eight mma.sync of 16, of which the j-th takes inputs 4 j to 4 j + 3 of each lane's 32. Groups of 64 or 32 are two or
four parts of a step (operand.py).

Source: Frantar et al. 2024, "MARLIN", section 3.4 (the conversion).
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, float32, uint32

from minllm import ptx
from minllm.kernels.matmul.fragments import MULTIPLY
from minllm.kernels.matmul.quantized.int4_tma_consumer import OFFSETS, make_pair_of_codes
from minllm.kernels.matmul.quantized.tensor_core_gemv.activations import make_prepare_numbers
from minllm.kernels.matmul.quantized.tensor_core_gemv.operand import (
    CODE_WORDS,
    FLOAT_OF,
    Operand,
    keep_nothing,
    make_is_mine,
    make_sum_of_parts,
)
from minllm.kernels.vector import load_words

INPUTS = 128
MIDDLE = 8  # the zero point without zeros


class Int4Arrays(NamedTuple):
    """A weight [N, K]: codes [N * K / 2], scales [N * groups] as unsigned integers of their bits, zeros [N * groups] and minimums like
    scales, or None."""

    codes: Any
    scales: Any
    zeros: Any
    minimums: Any


def make_multiply_codes(dtype: str, parts: int):
    """The device function with which a warp multiplies a step of codes: biased[0 : 4] = (offset + codes) x, for columns of x's parts."""
    pair_of_codes, multiply, is_mine = make_pair_of_codes(OFFSETS[dtype]), MULTIPLY[dtype], make_is_mine(parts)

    @cuda.jit(device=True, forceinline=True)
    def multiply_codes(memory, mask, codes, at, step, biased):
        a, b, sums = cuda.local.array(4, uint32), cuda.local.array(4, uint32), cuda.local.array(8, float32)
        for i in range(8):
            sums[i] = float32(0)
        own = uint32(uint32(step) * uint32(INPUTS // 2) + (uint32(cuda.threadIdx.x) & uint32(3)) * uint32(4))
        for i in range(4):
            for word in range(4):
                b[word] = uint32(0)
            if is_mine():
                load_words(memory, uint32(own + uint32(16 * i)), b, 0)
            for j in range(2):  # two chains of sums, so that one need not wait for the other
                for half in range(2):
                    a[2 * half] = pair_of_codes(codes[at + i], 2 * j + half, mask)
                    a[2 * half + 1] = pair_of_codes(codes[at + 4 + i], 2 * j + half, mask)
                multiply(sums, 4 * j, a, 0, b, 2 * j)
        for i in range(4):
            biased[i] = sums[i] + sums[4 + i]

    return multiply_codes


@functools.cache
def make_int4_operand(
    k: int, padded_steps: int, threads: int, dtype: str, group_size: int, scale_dtype: str, has_zeros: bool, has_minimums: bool
) -> Operand:
    """The Operand of weights in groups of 32, 64 or a multiple of 128; padded_steps: of x in shared memory."""
    parts, padded_k = max(1, INPUTS // group_size), padded_steps * INPUTS
    own, groups, offset = min(2, parts), k // group_size, OFFSETS[dtype].value  # a lane has sums of `own` parts of both rows
    zeros_at = 2 * own  # words of a step: scales, then zeros or minimums
    words_of_a_step = zeros_at + (2 * own if has_zeros or has_minimums else 0)
    multiply_codes, float_of, sums_at = make_multiply_codes(dtype, parts), FLOAT_OF[scale_dtype], padded_k // 2
    sum_of_parts, codes_mask = make_sum_of_parts(parts), 0x000F000F << OFFSETS[dtype].place

    @cuda.jit(device=True, forceinline=True)
    def first_part():
        """The first of the parts whose sums this lane has."""
        return uint32((uint32(cuda.threadIdx.x) & uint32(1)) << uint32(1)) if parts == 4 else uint32(0)

    @cuda.jit(device=True, forceinline=True)
    def begin_block(table, weight, zero):
        """The mask of a pair of codes: a lop3 takes one constant, so one that the compiler knows is moved to a register for every pair."""
        return uint32(codes_mask) | zero

    @cuda.jit(device=True, forceinline=True)
    def load_groups(array, rows, step, words, at):
        """words[at : at + 2 * own] = an element of each of the lane's groups of row low, and of row high."""
        for part in range(own):
            group = uint32(uint32(step) * uint32(INPUTS) // uint32(group_size) + uint32(first_part() + uint32(part)))
            words[at + part] = uint32(array[uint32(rows.low * uint32(groups) + group)])
            words[at + own + part] = uint32(array[uint32(rows.high * uint32(groups) + group)])

    @cuda.jit(device=True, forceinline=True)
    def load(weight, rows, kept, step, words, at):
        load_groups(weight.scales, rows, step, words, at)
        if has_zeros:
            load_groups(weight.zeros, rows, step, words, at + zeros_at)
        if has_minimums:
            load_groups(weight.minimums, rows, step, words, at + zeros_at)

    @cuda.jit(device=True, forceinline=True)
    def multiply(memory, mask, kept, held, u, step, total):
        biased, words, at = cuda.local.array(4, float32), held.scales, u * words_of_a_step
        multiply_codes(memory, mask, held.codes, u * CODE_WORDS, step, biased)
        for part in range(own):
            plain = ptx.uint_as_float(memory[uint32(uint32(step) * uint32(parts) + first_part() + uint32(sums_at + part))])
            for row in range(2):
                place = at + row * own + part
                scale, found = float_of(words[place]), biased[2 * row + part]
                if has_minimums:
                    total[2 * row] += scale * (found - float32(offset) * plain) + float_of(words[zeros_at + place]) * plain
                elif has_zeros:
                    total[2 * row] += scale * (found - (float32(offset) + float32(words[zeros_at + place])) * plain)
                else:
                    total[2 * row] += scale * (found - float32(offset + MIDDLE) * plain)

    @cuda.jit(device=True, forceinline=True)
    def finish(kept, total, factor):
        return factor * sum_of_parts(total[0]), factor * sum_of_parts(total[2])

    prepare = make_prepare_numbers(k, padded_k, threads, dtype, parts)
    x_bytes = padded_k * 2 + padded_steps * parts * 4
    return Operand(
        k // INPUTS, k // 2, words_of_a_step, x_bytes, 0, float32, begin_block, prepare, keep_nothing, load, multiply, finish
    )  # fmt: skip
