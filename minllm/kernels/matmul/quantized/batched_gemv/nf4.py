"""NF4 (W4A16) for the batched GEMV: a table of pairs in shared memory makes a byte of codes a pair of 16-bit floats.

An absmax is itself an 8-bit code, with a scale per 256 blocks and an offset per row; its map lies in shared memory too.

Source: Dettmers et al. 2023, "QLoRA: Efficient Finetuning of Quantized LLMs", section 3.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, float32, int32, uint32

from minllm import ptx
from minllm.kernels.matmul.quantized.batched_gemv.decoder import Decoder, Scale, x_as_it_is
from minllm.kernels.matmul.quantized.nf4 import BLOCK_SHIFT, NESTED_SHIFT
from minllm.kernels.matmul.quantized.nf4_pairs import PAIRS_BYTES, make_fill_pairs
from minllm.kernels.matmul.quantized.nf4_tma_consumer import pair_of_byte
from minllm.tiles.warp import WARP

BLOCKS = 2  # of a step
MAP_ENTRIES = 256


class Kept(NamedTuple):
    """Of a row: the number of its first block, and what is added to its absmax."""

    first_block: Any
    offset: Any


@cuda.jit(device=True, forceinline=True)
def add_scaled(total, absmax, offset, numbers_times_x, x):
    """The `add` of blocks of numbers times their absmax."""
    return total + absmax * numbers_times_x


@functools.cache
def make_nf4_decoder(dtype: str, k: int, threads: int, is_nested: bool) -> Decoder:
    """The Decoder of weights with or without double quantisation."""
    fill_pairs, blocks_of_a_row = make_fill_pairs(dtype), k >> BLOCK_SHIFT

    @cuda.jit(device=True, forceinline=True)
    def begin_block(table, weight):
        fill_pairs(table, weight.table, int32(cuda.threadIdx.x), threads)
        if is_nested:
            for i in range(int32(cuda.threadIdx.x), MAP_ENTRIES, threads):
                ptx.store_32(table, PAIRS_BYTES + 4 * i, ptx.float_as_uint(float32(weight.map[i])))
        return table

    @cuda.jit(device=True, forceinline=True)
    def begin(weight, row):
        return Kept(uint32(weight.first_blocks[row]), float32(weight.offsets[row]))

    @cuda.jit(device=True, forceinline=True)
    def load(weight, row, kept, block, words, at):
        absmax = weight.absmax[uint32(row * uint32(blocks_of_a_row) + block)]
        if is_nested:
            words[at] = uint32(absmax)
            words[at + 1] = ptx.float_as_uint(float32(weight.nested[uint32(kept.first_block + block) >> uint32(NESTED_SHIFT)]))
        else:
            words[at] = ptx.float_as_uint(float32(absmax))

    @cuda.jit(device=True, forceinline=True)
    def scale(table, kept, words, at):
        if not is_nested:
            return Scale(ptx.uint_as_float(words[at]), float32(0))
        entry = ptx.uint_as_float(ptx.load_32(table, uint32(uint32(PAIRS_BYTES) + (words[at] << uint32(2)))))
        return Scale(entry * ptx.uint_as_float(words[at + 1]) + kept.offset, float32(0))

    @cuda.jit(device=True, forceinline=True)
    def pair(table, word, i):
        lane = uint32(cuda.threadIdx.x) & uint32(WARP - 1)
        return pair_of_byte(table, word, i, uint32(lane << uint32(2)))

    words, table_bytes = 2 if is_nested else 1, PAIRS_BYTES + 4 * MAP_ENTRIES
    return Decoder(
        BLOCKS, words, table_bytes, 1.0, False, False, begin_block, begin, load, scale, pair, x_as_it_is, add_scaled
    )  # fmt: skip
