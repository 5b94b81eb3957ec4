"""NF4 (W4A16) as an operand of mma.sync: a table of pairs in shared memory makes a byte of codes a pair of 16-bit floats.

    low = sum over blocks of absmax[low, b] * (sum over the block of x[k] * table[code[low, k]])          absmax: kernels/.../nf4.py

A step is 128 inputs, two blocks of 64, which are two parts of a step (operand.py). An absmax is itself an 8-bit code with a scale per 256
blocks and an offset per row: both are loaded with the codes, and looked up in the map, which lies in shared memory, in their step.

Source: Dettmers et al. 2023, "QLoRA: Efficient Finetuning of Quantized LLMs", section 3.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, float32, int32, uint32

from minllm import ptx
from minllm.kernels.matmul.fragments import MULTIPLY
from minllm.kernels.matmul.quantized.nf4 import BLOCK_SHIFT, NESTED_SHIFT
from minllm.kernels.matmul.quantized.nf4_pairs import PAIRS_BYTES, make_fill_pairs
from minllm.kernels.matmul.quantized.nf4_tma_consumer import pair_of_byte
from minllm.kernels.matmul.quantized.tensor_core_gemv.activations import make_prepare_numbers
from minllm.kernels.matmul.quantized.tensor_core_gemv.operand import CODE_WORDS, Operand, make_is_mine
from minllm.kernels.vector import load_words
from minllm.tiles.warp import WARP

INPUTS, BLOCKS = 128, 2  # inputs and blocks of a step
MAP_ENTRIES = 256


class Kept(NamedTuple):
    """Of rows low and high: the number of their first block, and what is added to their absmax."""

    low_block: Any
    high_block: Any
    low_offset: Any
    high_offset: Any


@functools.cache
def make_nf4_operand(k: int, padded_steps: int, threads: int, dtype: str, is_nested: bool) -> Operand:
    """The Operand of weights with or without double quantisation; padded_steps: of x in shared memory."""
    multiply, is_mine, fill_pairs = MULTIPLY[dtype], make_is_mine(BLOCKS), make_fill_pairs(dtype)
    padded_k, nested_at = padded_steps * INPUTS, 2 * BLOCKS  # words of a step: absmax, then nested scales
    words_of_a_step, blocks_of_a_row = nested_at + (2 * BLOCKS if is_nested else 0), k >> BLOCK_SHIFT

    @cuda.jit(device=True, forceinline=True)
    def fill_map(table, absmax_map):
        if absmax_map is not None:
            for i in range(int32(cuda.threadIdx.x), MAP_ENTRIES, threads):
                ptx.store_32(table, PAIRS_BYTES + 4 * i, ptx.float_as_uint(float32(absmax_map[i])))

    @cuda.jit(device=True, forceinline=True)
    def begin_block(table, weight, zero):
        fill_pairs(table, weight.table, int32(cuda.threadIdx.x), threads)
        fill_map(table, weight.map)
        return table

    @cuda.jit(device=True, forceinline=True)
    def begin(weight, rows):
        first, offsets = weight.first_blocks, weight.offsets
        return Kept(uint32(first[rows.low]), uint32(first[rows.high]), float32(offsets[rows.low]), float32(offsets[rows.high]))

    @cuda.jit(device=True, forceinline=True)
    def load_nested(nested, kept, block, words, at):
        if nested is not None:
            words[at] = ptx.float_as_uint(float32(nested[uint32(kept.low_block + block) >> uint32(NESTED_SHIFT)]))
            words[at + BLOCKS] = ptx.float_as_uint(float32(nested[uint32(kept.high_block + block) >> uint32(NESTED_SHIFT)]))

    @cuda.jit(device=True, forceinline=True)
    def load_absmax(absmax, rows, block, words, at):
        low, high = absmax[uint32(rows.low * uint32(blocks_of_a_row) + block)], absmax[uint32(rows.high * uint32(blocks_of_a_row) + block)]
        if is_nested:
            words[at], words[at + BLOCKS] = uint32(low), uint32(high)
        else:
            words[at], words[at + BLOCKS] = ptx.float_as_uint(float32(low)), ptx.float_as_uint(float32(high))

    @cuda.jit(device=True, forceinline=True)
    def load(weight, rows, kept, step, words, at):
        for block in range(BLOCKS):
            number = uint32(uint32(step) * uint32(BLOCKS) + uint32(block))
            load_absmax(weight.absmax, rows, number, words, at + block)
            load_nested(weight.nested, kept, number, words, at + nested_at + block)

    @cuda.jit(device=True, forceinline=True)
    def absmax_of(table, kept, words, at, row, block):
        place = at + row * BLOCKS + block
        if not is_nested:
            return ptx.uint_as_float(words[place])
        entry = ptx.uint_as_float(ptx.load_32(table, uint32(uint32(PAIRS_BYTES) + (words[place] << uint32(2)))))
        return entry * ptx.uint_as_float(words[nested_at + place]) + (kept.high_offset if row else kept.low_offset)

    @cuda.jit(device=True, forceinline=True)
    def multiply_step(memory, table, kept, held, u, step, total):
        a, b, sums = cuda.local.array(4, uint32), cuda.local.array(4, uint32), cuda.local.array(8, float32)
        lane, at = uint32(cuda.threadIdx.x) & uint32(WARP - 1), u * CODE_WORDS
        own = uint32(uint32(step) * uint32(INPUTS // 2) + (lane & uint32(3)) * uint32(4))
        for i in range(8):
            sums[i] = float32(0)
        for i in range(4):
            for word in range(4):
                b[word] = uint32(0)
            if is_mine():
                load_words(memory, uint32(own + uint32(16 * i)), b, 0)
            for j in range(2):
                for half in range(2):
                    a[2 * half] = pair_of_byte(table, held.codes[at + i], 2 * j + half, uint32(lane << uint32(2)))
                    a[2 * half + 1] = pair_of_byte(table, held.codes[at + 4 + i], 2 * j + half, uint32(lane << uint32(2)))
                multiply(sums, 4 * j, a, 0, b, 2 * j)
        for row in range(2):
            for block in range(BLOCKS):
                at_sum = 2 * row + block
                total[2 * row] += absmax_of(table, kept, held.scales, u * words_of_a_step, row, block) * (sums[at_sum] + sums[4 + at_sum])

    @cuda.jit(device=True, forceinline=True)
    def finish(kept, total, factor):
        return factor * total[0], factor * total[2]

    prepare = make_prepare_numbers(k, padded_k, threads, dtype, BLOCKS)
    x_bytes, table_bytes = padded_k * 2 + padded_steps * BLOCKS * 4, PAIRS_BYTES + 4 * MAP_ENTRIES
    return Operand(
        k // INPUTS, k // 2, words_of_a_step, x_bytes, table_bytes, float32, begin_block, prepare, begin, load, multiply_step, finish
    )  # fmt: skip
