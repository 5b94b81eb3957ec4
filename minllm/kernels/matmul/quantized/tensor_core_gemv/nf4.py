"""NF4 (W4A16) as an operand of mma.sync: a table of pairs turns a byte of codes into two 16-bit floats.

    low = sum over blocks of absmax[low, b] * (sum over the block of x[k] * table[code[low, k]])          absmax: kernels/.../nf4.py

A step is 128 inputs, two blocks of 64, which are two parts of a step (operand.py). With double quantisation an absmax is an 8-bit code with
a scale per 256 blocks and an offset per row. Code and scale are loaded with the weight's codes; in their step the code is looked up in the
map. Table and map lie in shared memory.

Source: Dettmers et al. 2023, "QLoRA: Efficient Finetuning of Quantized LLMs", section 3.
"""

import functools
from typing import NamedTuple

from numba import cuda, float32, uint32

from minllm import ptx
from minllm.kernels.matmul.quantized.nf4 import NESTED_SHIFT
from minllm.kernels.matmul.quantized.nf4_pairs import TABLE_BYTES, make_fill_tables, mapped, pair_at, tables_at
from minllm.kernels.matmul.quantized.tensor_core_gemv.activations import make_prepare_numbers
from minllm.kernels.matmul.quantized.tensor_core_gemv.numbers import INPUTS, make_multiply, make_shares
from minllm.kernels.matmul.quantized.tensor_core_gemv.operand import Operand

BLOCKS = 2  # NF4 blocks per step


class Kept(NamedTuple):
    """The data of rows low and high: the numbers of their first blocks, and the offsets added to their absmax."""

    low_block: int
    high_block: int
    low_offset: float
    high_offset: float


@functools.cache
def make_nf4_operand(k: int, tiling, dtype: str, is_nested: bool) -> Operand:
    """Return the Operand of NF4 weights, with or without double quantisation."""
    steps, threads, shares = k // INPUTS, tiling.threads, make_shares(BLOCKS, tiling.unroll)
    padded_steps, sum_of_lanes = tiling.padded_steps(steps), shares.sum_of_lanes
    nested_at = 2 * BLOCKS  # the words of a group of steps are absmax or its codes, then nested scales
    padded_k, words_of_a_group = padded_steps * INPUTS, nested_at + (2 * BLOCKS if is_nested else 0)

    @cuda.jit(device=True, forceinline=True)
    def pair_of(tables, word, i):
        return pair_at(tables.pairs, word, i)

    @cuda.jit(device=True, forceinline=True)
    def begin(weight, rows):
        first, offsets = weight.first_blocks, weight.offsets
        return Kept(uint32(first[rows.low]), uint32(first[rows.high]), float32(offsets[rows.low]), float32(offsets[rows.high]))

    @cuda.jit(device=True, forceinline=True)
    def load(weight, rows, kept, step, words, at):
        for block in range(BLOCKS):
            number = uint32(uint32(step * BLOCKS) + uint32(block))
            for row in range(2):
                place = uint32(number * uint32(weight.outputs) + (rows.high if row else rows.low))
                absmax = weight.absmax[place]
                words[at + row * BLOCKS + block] = uint32(absmax) if is_nested else ptx.float_as_uint(float32(absmax))
                if is_nested:
                    nested = weight.nested[uint32((kept.high_block if row else kept.low_block) + number) >> uint32(NESTED_SHIFT)]
                    words[at + nested_at + row * BLOCKS + block] = ptx.float_as_uint(float32(nested))

    @cuda.jit(device=True, forceinline=True)
    def nested_absmax(decoder, kept, words, at, row, block):
        nested = ptx.uint_as_float(words[at + nested_at + row * BLOCKS + block])
        return mapped(decoder, words[at + row * BLOCKS + block]) * nested + (kept.high_offset if row else kept.low_offset)

    @cuda.jit(device=True, forceinline=True)
    def loaded_absmax(decoder, kept, words, at, row, block):
        return ptx.uint_as_float(words[at + row * BLOCKS + block])

    absmax_of = nested_absmax if is_nested else loaded_absmax

    @cuda.jit(device=True, forceinline=True)
    def scale(memory, decoder, kept, held, index, step, sums):
        for row in range(2):
            for block in range(BLOCKS):
                absmax = absmax_of(decoder, kept, held.scales, index * words_of_a_group, row, block)
                sums.total[2 * row] += absmax * sums.unscaled[2 * row + block]

    @cuda.jit(device=True, forceinline=True)
    def finish(kept, total, factor):
        return factor * sum_of_lanes(total[0]), factor * sum_of_lanes(total[2])

    prepare, multiply = make_prepare_numbers(k, padded_k, threads, dtype, BLOCKS), make_multiply(dtype, BLOCKS, shares, pair_of)
    x_bytes, fill = padded_k * 2 + padded_steps * BLOCKS * 4, make_fill_tables(dtype, threads)
    return Operand(
        steps, k // 2, shares.group, words_of_a_group, x_bytes, TABLE_BYTES, float32, fill, prepare, tables_at, begin, shares.own_step,
        load, multiply, scale, finish,
    )  # fmt: skip
