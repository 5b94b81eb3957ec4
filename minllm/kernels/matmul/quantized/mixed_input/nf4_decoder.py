"""NF4 for mixed-input GEMM: a byte is a pair of codes, and a table of 256 pairs in shared memory makes it a register of two numbers.

    w[n, k] = table[code[n, k]] * absmax[n, k // 64]          both rounded to x's dtype, and their product         absmax: nf4.py

Byte t of a word has the codes of inputs 2 t and 2 t + 1, which are those that lane t needs. A rotation and a lop3 make the byte an address,
a load finds the pair, and an fma multiplies it by absmax. A step of 64 inputs is a block of NF4.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, float32, uint32

from minllm import ptx
from minllm.kernels.matmul.quantized.mixed_input.decoder import BOTH_ROWS, FMA, MINUS_ZEROS, PACK, WORDS, Decoder, load_nibbles
from minllm.kernels.matmul.quantized.mixed_input.tiling import STEP
from minllm.kernels.matmul.quantized.nf4 import NESTED_SHIFT, Nf4Arrays
from minllm.kernels.matmul.quantized.nf4_pairs import ENTRY_SHIFT, PAIRS_BYTES, make_fill_pairs
from minllm.tiles.warp import WARP


class Row(NamedTuple):
    """Of a row of weight: its number, that of its first block, and what is added to its absmax."""

    number: Any
    first_block: Any
    offset: Any


class Lane(NamedTuple):
    """A lane's rows of weight, the table of pairs, and where the lane's copy begins, in bytes."""

    low: Row
    high: Row
    pairs: Any
    copy: Any


@cuda.jit(device=True, forceinline=True)
def row_of(weight, number):
    """The Row of this number."""
    return Row(number, uint32(weight.first_blocks[number]), weight.offsets[number])


@cuda.jit(device=True, forceinline=True)
def make_lane(weight, table, low, high, zero):
    """What a lane keeps."""
    return Lane(row_of(weight, low), row_of(weight, high), table, uint32(4 * (cuda.threadIdx.x & (WARP - 1))))


class Absmax(NamedTuple):
    """The absmax of a block as loaded: its code, and the scale of the code; without double quantisation itself, and nothing."""

    code: Any
    scale: Any


@cuda.jit(device=True, forceinline=True)
def load_absmax(absmax, nested, row, block):
    """The Absmax of a block of a Row."""
    if nested is None:
        return Absmax(absmax[row.number, block], float32(1))
    return Absmax(absmax[row.number, block], nested[uint32(row.first_block + block) >> uint32(NESTED_SHIFT)])


@cuda.jit(device=True, forceinline=True)
def look_up(absmax_map, nested, row, found):
    """The largest magnitude of the block."""
    if nested is None:
        return found.code
    return absmax_map[found.code] * found.scale + row.offset


@cuda.jit(device=True, forceinline=True)
def load_scales(weight, lane, step):
    """The Absmax of row low and of row high in the block of a step, or in the last block."""
    block = uint32(min(uint32(step), uint32(weight.absmax.shape[1] - 1)))
    return load_absmax(weight.absmax, weight.nested, lane.low, block), load_absmax(weight.absmax, weight.nested, lane.high, block)


@functools.cache
def make_nf4_decoder(dtype: str) -> Decoder:
    """The Decoder; dtype: bfloat16 or float16."""
    fill_pairs, pack, fma = make_fill_pairs(dtype), PACK[dtype], FMA[dtype]
    entry_mask = 255 << ENTRY_SHIFT

    @cuda.jit(device=True, forceinline=True)
    def fill_table(table, weight, thread):
        fill_pairs(table, weight.table, thread, cuda.blockDim.x)

    @cuda.jit(device=True, forceinline=True)
    def make_pairs(weight, lane, scales, pairs):
        """absmax of both rows."""
        low = look_up(weight.map, weight.nested, lane.low, scales[0])
        high = look_up(weight.map, weight.nested, lane.high, scales[1])
        pairs[0], pairs[1] = pack(low, low), pack(high, high)

    @cuda.jit(device=True, forceinline=True)
    def number(word, rotation, lane, scale):
        """Two numbers of a word, rotated so that the lane's byte is the entry's number."""
        entry = ptx.shf_l_wrap(word, word, rotation) & uint32(entry_mask)
        return fma(ptx.load_32(lane.pairs, entry | lane.copy), scale, uint32(MINUS_ZEROS))

    @cuda.jit(device=True, forceinline=True)
    def decode(memory, line, lane, pairs, numbers):
        """numbers[0 : 16] = a step of both rows."""
        words, t = cuda.local.array(BOTH_ROWS, uint32), uint32(cuda.threadIdx.x) & uint32(3)
        load_nibbles(memory, line, words)
        rotation = uint32(uint32(ENTRY_SHIFT) - uint32(8) * t)
        for word in range(WORDS):
            numbers[2 * word] = number(words[word], rotation, lane, pairs[0])
            numbers[2 * word + 1] = number(words[WORDS + word], rotation, lane, pairs[1])

    return Decoder(Nf4Arrays, STEP // 2, 2, PAIRS_BYTES, fill_table, make_lane, load_scales, make_pairs, decode)
