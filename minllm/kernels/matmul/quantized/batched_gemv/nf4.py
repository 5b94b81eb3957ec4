"""NF4 (W4A16) for the batched GEMV: a table of pairs turns a byte of codes into two 16-bit floats.

The table lies in shared memory. With double quantisation an absmax is an 8-bit code, with a scale per 256 blocks and an offset per row; its
map is in shared memory too.

Source: Dettmers et al. 2023, "QLoRA: Efficient Finetuning of Quantized LLMs", section 3.
"""

import functools
from typing import NamedTuple

from numba import cuda, float32, uint32

from minllm import ptx
from minllm.kernels.matmul.quantized.batched_gemv.decoder import Decoder, Scale, x_as_it_is
from minllm.kernels.matmul.quantized.nf4 import NESTED_SHIFT
from minllm.kernels.matmul.quantized.nf4_pairs import TABLE_BYTES, make_fill_tables, mapped, pair_at, tables_at

BLOCKS = 2  # NF4 blocks per step


class Kept(NamedTuple):
    """A row's data: the number of its first block, and the offset added to its absmax."""

    first_block: int
    offset: float


@cuda.jit(device=True, forceinline=True)
def add_scaled(total, absmax, offset, numbers_times_x, x):
    """Decoder.add for NF4: the sum of a block times its absmax."""
    return total + absmax * numbers_times_x


@functools.cache
def make_nf4_decoder(dtype: str, threads: int, is_nested: bool) -> Decoder:
    """Return the Decoder of NF4 weights, with or without double quantisation."""
    fill = make_fill_tables(dtype, threads)

    @cuda.jit(device=True, forceinline=True)
    def begin_block(table, weight):
        fill(table, weight)
        return tables_at(table)

    @cuda.jit(device=True, forceinline=True)
    def begin(weight, row):
        return Kept(uint32(weight.first_blocks[row]), float32(weight.offsets[row]))

    @cuda.jit(device=True, forceinline=True)
    def load(weight, row, kept, block, words, at):
        absmax = weight.absmax[uint32(block * uint32(weight.outputs) + row)]
        if is_nested:
            words[at] = uint32(absmax)
            words[at + 1] = ptx.float_as_uint(float32(weight.nested[uint32(kept.first_block + block) >> uint32(NESTED_SHIFT)]))
        else:
            words[at] = ptx.float_as_uint(float32(absmax))

    @cuda.jit(device=True, forceinline=True)
    def scale(tables, kept, words, at):
        if not is_nested:
            return Scale(ptx.uint_as_float(words[at]), float32(0))
        return Scale(mapped(tables, words[at]) * ptx.uint_as_float(words[at + 1]) + kept.offset, float32(0))

    @cuda.jit(device=True, forceinline=True)
    def pair(tables, word, i):
        return pair_at(tables.pairs, word, i)

    words = 2 if is_nested else 1
    return Decoder(BLOCKS, words, TABLE_BYTES, 1.0, False, False, begin_block, begin, load, scale, pair, x_as_it_is, add_scaled)
