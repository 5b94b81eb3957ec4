"""NF4 for mixed-input GEMM: a table of 256 pairs turns a byte of two codes into a register of two numbers.

    w[n, k] = table[code[n, k]] * absmax[n, k // 64]          both and their product are rounded to x's dtype         absmax: nf4.py

Byte t of a word has the codes of inputs 2 t and 2 t + 1, which are those that lane t needs. A dp4a turns the byte into an address
(nf4_pairs.py), a load fetches the pair from shared memory, and an fma multiplies it by absmax. A step of 64 inputs is one NF4 block.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, float32, uint32

from minllm import ptx
from minllm.kernels.matmul.quantized.mixed_input.decoder import BOTH_ROWS, FMA, MINUS_ZEROS, PACK, WORDS, Decoder, load_nibbles
from minllm.kernels.matmul.quantized.mixed_input.tiling import STEP
from minllm.kernels.matmul.quantized.nf4 import NESTED_SHIFT, Nf4Arrays
from minllm.kernels.matmul.quantized.nf4_pairs import ENTRY_BYTES, PAIRS_BYTES, make_fill_pairs, tables_at


class Row(NamedTuple):
    """A row of weight: its number, that of its first block, and the offset added to its absmax."""

    number: Any
    first_block: Any
    offset: Any


class Lane(NamedTuple):
    """A lane's rows of weight, the shared address of its table of pairs, and the entry size shifted to its byte."""

    low: Row
    high: Row
    copy: Any
    entry: Any


@cuda.jit(device=True, forceinline=True)
def row_of(weight, number):
    """Return the Row of this number."""
    return Row(number, uint32(weight.first_blocks[number]), weight.offsets[number])


@cuda.jit(device=True, forceinline=True)
def make_lane(weight, table, low, high):
    """Return the Lane of rows low and high."""
    entry = uint32(uint32(ENTRY_BYTES) << ((uint32(cuda.threadIdx.x) & uint32(3)) << uint32(3)))
    return Lane(row_of(weight, low), row_of(weight, high), tables_at(table).pairs, entry)


class Absmax(NamedTuple):
    """A block's absmax, unconverted: code and the code's scale, or without double quantisation itself and 1."""

    code: Any
    scale: Any


@cuda.jit(device=True, forceinline=True)
def load_absmax(absmax, nested, row, block):
    """Return the Absmax of a block of a Row."""
    if nested is None:
        return Absmax(absmax[row.number, block], float32(1))
    return Absmax(absmax[row.number, block], nested[uint32(row.first_block + block) >> uint32(NESTED_SHIFT)])


@cuda.jit(device=True, forceinline=True)
def look_up(absmax_map, nested, row, found):
    """Return the largest magnitude of the block with this Absmax."""
    if nested is None:
        return found.code
    return absmax_map[found.code] * found.scale + row.offset


@cuda.jit(device=True, forceinline=True)
def load_ahead(weight, lane, step):
    """Return the Absmax of rows low and high in the block of a step, or in the last block past the end of a row."""
    block = uint32(min(uint32(step), uint32(weight.absmax.shape[1] - 1)))
    return load_absmax(weight.absmax, weight.nested, lane.low, block), load_absmax(weight.absmax, weight.nested, lane.high, block)


@functools.cache
def make_nf4_decoder(dtype: str) -> Decoder:
    """Return the Decoder of NF4 weights; dtype of x: bfloat16 or float16."""
    fill_pairs, pack, fma = make_fill_pairs(dtype), PACK[dtype], FMA[dtype]

    @cuda.jit(device=True, forceinline=True)
    def fill_table(table, weight, thread):
        fill_pairs(table, weight.table, thread, cuda.blockDim.x)

    def make_pairs(read):
        @cuda.jit(device=True, forceinline=True)
        def pairs_of_step(weight, lane, ahead, stage, elements, pairs):
            """pairs[0 : 2] = the absmax of rows low and high."""
            low = look_up(weight.map, weight.nested, lane.low, ahead[0])
            high = look_up(weight.map, weight.nested, lane.high, ahead[1])
            pairs[0], pairs[1] = pack(low, low), pack(high, high)

        return pairs_of_step

    @cuda.jit(device=True, forceinline=True)
    def number(word, lane, scale):
        """Return the two numbers of the lane's byte of a word, times absmax."""
        return fma(ptx.load_shared_32(ptx.dp4a_u32(word, lane.entry, lane.copy)), scale, uint32(MINUS_ZEROS))

    @cuda.jit(device=True, forceinline=True)
    def decode(memory, line, lane, pairs, numbers):
        """numbers[0 : 16] = a decoded step of both rows."""
        words = cuda.local.array(BOTH_ROWS, uint32)
        load_nibbles(memory, line, words)
        for word in range(WORDS):
            numbers[2 * word] = number(words[word], lane, pairs[0])
            numbers[2 * word + 1] = number(words[WORDS + word], lane, pairs[1])

    return Decoder((), STEP // 2, 2, PAIRS_BYTES, fill_table, make_lane, load_ahead, make_pairs, decode)
