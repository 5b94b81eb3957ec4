"""Rows of an accumulator in registers: mask, maximum, exponentials, scale, conversion to 16 bits, store.

mma.sync and wgmma distribute an accumulator of 16 * row_tiles rows over a warp in the same way. Lane l holds two neighbouring elements of
each 8 columns in row l // 4 of every 16 rows, and two in row l // 4 + 8:

    acc[4 * (row_tile * columns / 8 + block) + 2 * half + i]  is  row 16 * row_tile + 8 * half + l // 4, column 8 * block + 2 * (l % 4) + i

So a lane holds parts of 2 * row_tiles rows, numbered row = 2 * row_tile + half in the operations below, and four lanes share each row.
PTX ISA, "Matrix fragments for mma.m16n8k16" and "Register fragments and shared memory matrix layouts for wgmma".
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

from numba import cuda, float32, int32, int64, uint32

from minllm.ptx import ex2, pack_bf16x2, pack_f16x2, store_128
from minllm.tiles.warp import ALL_LANES


class Rows(NamedTuple):
    """Device functions over one row of an accumulator `acc`; all lanes of the warp call them together."""

    position: Callable  # position(row, lane): the index of this row among the warp's rows
    column: Callable  # column(lane): the lane's first column; its others are 8 * block and 8 * block + 1 further
    mask: Callable  # mask(acc, row, number, first, last): columns outside first to last become -inf; number: of the lane's first column
    maximum: Callable  # maximum(acc, row, start): the largest element of the row, at least start, in all of its lanes
    subtract: Callable  # subtract(acc, row, amount)
    exponentials: Callable  # exponentials(acc, row, maximum, scale, total): x becomes 2 ** (scale * (x - maximum)); total + the lane's sum
    sum: Callable  # sum(total): the sum over the row's lanes
    scale: Callable  # scale(acc, row, factor)
    pack: Callable  # pack(acc, row_tile, step, words, at): columns 16 * step to 16 * step + 16 as the A operand of mma, words[at:at + 4]
    store: Callable  # store(acc, row, factor, out, start, inside, lane): out[start:start + columns] = row * factor, if it is inside
    select: Callable  # select(acc, row, number, first, words, at): columns from `first` on become -inf if their bit of words[at] is 0


@functools.cache
def make_rows(columns, dtype, row_tiles=1, padded=None, fused=False):
    """Rows of accumulators [16 * row_tiles, columns] that are packed and stored as 16-bit `dtype`.

    padded: columns in registers, if there are more than are stored. fused: `exponentials` computes scale * x - scale * maximum by one FMA,
    which keeps the rounding error of scale * maximum (at 1e5 to base 2, one part in 300); without it the difference is taken first, and is
    exact.
    """
    blocks = (padded or columns) // 8

    @cuda.jit(device=True)
    def first_element(row):
        """Index in `acc` of the lane's first element of a row; those of the next block of 8 columns are 4 further."""
        return row // 2 * 4 * blocks + row % 2 * 2

    mask, maximum, subtract, scale, select = make_elementwise(blocks, first_element)
    pack, store = make_conversion(columns, blocks, dtype, first_element)

    @cuda.jit(device=True)
    def position(row, lane):
        return row // 2 * 16 + row % 2 * 8 + lane // 4

    @cuda.jit(device=True)
    def column(lane):
        return 2 * (lane % 4)

    @cuda.jit(device=True)
    def exponentials(acc, row, maximum, scale, total):
        at = first_element(row)
        shift = maximum * scale
        for block in range(blocks):
            if fused:
                left, right = ex2(acc[at + 4 * block] * scale - shift), ex2(acc[at + 4 * block + 1] * scale - shift)
            else:
                left, right = ex2((acc[at + 4 * block] - maximum) * scale), ex2((acc[at + 4 * block + 1] - maximum) * scale)
            acc[at + 4 * block], acc[at + 4 * block + 1] = left, right
            total = total + (left + right) if fused else total + left + right
        return total

    @cuda.jit(device=True)
    def sum_of_lanes(total):
        total += cuda.shfl_xor_sync(ALL_LANES, total, 1)
        return total + cuda.shfl_xor_sync(ALL_LANES, total, 2)

    return Rows(position, column, mask, maximum, subtract, exponentials, sum_of_lanes, scale, pack, store, select)


def make_elementwise(blocks, first_element):
    """(mask, maximum, subtract, scale, select) of Rows with 8 * blocks columns."""

    @cuda.jit(device=True)
    def mask(acc, row, number, first, last):
        """With number 0, and limits relative to the lane's first column, columns would be constants, but every row would need its own
        limits in registers: 48 bytes of spills in a kernel with four rows per lane and 249 registers."""
        at = first_element(row)
        for block in range(blocks):
            for i in range(2):
                column = int32(number + 8 * block + i)
                if column > last or column < first:
                    acc[at + 4 * block + i] = float32(-math.inf)

    @cuda.jit(device=True)
    def maximum(acc, row, start):
        at = first_element(row)
        highest = start
        for block in range(blocks):
            highest = max(highest, max(acc[at + 4 * block], acc[at + 4 * block + 1]))
        highest = max(highest, cuda.shfl_xor_sync(ALL_LANES, highest, 1))
        return max(highest, cuda.shfl_xor_sync(ALL_LANES, highest, 2))

    @cuda.jit(device=True)
    def subtract(acc, row, amount):
        at = first_element(row)
        for block in range(blocks):
            acc[at + 4 * block] -= amount
            acc[at + 4 * block + 1] -= amount

    @cuda.jit(device=True)
    def scale(acc, row, factor):
        at = first_element(row)
        for block in range(blocks):
            acc[at + 4 * block] *= factor
            acc[at + 4 * block + 1] *= factor

    @cuda.jit(device=True)
    def select(acc, row, number, first, words, at):
        start = first_element(row)
        for block in range(blocks):
            for i in range(2):
                if not is_selected(words, at, int32(number + 8 * block + i - first)):
                    acc[start + 4 * block + i] = float32(-math.inf)

    return mask, maximum, subtract, scale, select


@cuda.jit(device=True)
def is_selected(words, at, bit):
    """Whether a bit of words[at] is set, counted from the lowest bit of the first word; true for bits outside the words."""
    if bit < 0 or bit >= 32 * words.shape[1]:
        return True
    return (words[at, bit >> 5] >> (bit & 31)) & 1 != 0


def make_conversion(columns, blocks, dtype, first_element):
    """(pack, store) of Rows with 8 * blocks columns, of which `columns` are stored."""
    pack_pair = pack_bf16x2 if dtype == "bfloat16" else pack_f16x2
    stored, whole_groups = columns // 8, columns % 32 == 0

    @cuda.jit(device=True)
    def pack(acc, row_tile, step, words, at):
        source = 4 * (row_tile * blocks + 2 * step)
        for i in range(4):
            words[at + i] = pack_pair(acc[source + 2 * i], acc[source + 2 * i + 1])

    @cuda.jit(device=True)
    def exchange(words, i, j, odd, distance):
        """Swap words[j] of the lane whose bit is clear with words[i] of the other: one step of a transpose over lanes."""
        sent = int32(words[i] if odd else words[j])
        received = uint32(cuda.shfl_xor_sync(ALL_LANES, sent, distance))
        if odd:
            words[i] = received
        else:
            words[j] = received

    @cuda.jit(device=True)
    def store(acc, row, factor, out, start, inside, lane):
        """The 16 bytes of each 8 columns of a row are spread over four lanes. A transpose of four by four words gives each lane 16
        contiguous bytes, and neighbouring lanes neighbouring bytes: stores of whole sectors, without shared memory."""
        at = first_element(row)
        words = cuda.local.array(4, uint32)
        start += int64(8 * (lane % 4))
        for group in range((stored + 3) // 4):
            for i in range(4):
                block = 4 * group + i
                words[i] = pack_pair(acc[at + 4 * block] * factor, acc[at + 4 * block + 1] * factor) if block < stored else uint32(0)
            odd = lane % 2 == 1
            exchange(words, 0, 1, odd, 1)
            exchange(words, 2, 3, odd, 1)
            odd = lane // 2 % 2 == 1
            exchange(words, 0, 2, odd, 2)
            exchange(words, 1, 3, odd, 2)
            if inside and (whole_groups or 32 * group + 8 * (lane % 4) < columns):
                store_128(out, start + int64(32 * group), words[0], words[1], words[2], words[3])

    return pack, store
