"""The table that makes a byte of NF4 codes a register of two 16-bit floats, in shared memory.

A byte holds the codes of two neighbouring inputs, the first in its upper half, so a table of 256 pairs turns it into a register of a tensor
core's operand with one load. Lanes look up different bytes, and shared memory has 32 banks of 4 bytes: each lane has a copy of the table in
a bank of its own, 32 KB in all, so that none waits for another.

    pairs[byte, lane] = (table[byte >> 4], table[byte & 15])

Behind it lies the map of 256 numbers of which an absmax with double quantisation is the code.
"""

from typing import Any, NamedTuple

from numba import cuda, float32, int32, uint32

from minllm import ptx
from minllm.tiles.warp import WARP

CODES = 16
ENTRY_BYTES = 4 * WARP  # all copies of a pair
PAIRS_BYTES = CODES * CODES * ENTRY_BYTES
COLUMNS = CODES * ENTRY_BYTES // 16  # stores of 16 bytes that the pairs with one first code take
MAP_ENTRIES = 256
TABLE_BYTES = PAIRS_BYTES + 4 * MAP_ENTRIES


class Tables(NamedTuple):
    """Shared addresses of the lane's copy of the table of pairs, and of the map of absmax."""

    pairs: Any
    map: Any


@cuda.jit(device=True, forceinline=True)
def tables_at(table):
    """The Tables that begin with `table`."""
    start = ptx.keep_register(ptx.shared_address(table, 0))
    return Tables(uint32(start + uint32(4) * (uint32(cuda.threadIdx.x) & uint32(WARP - 1))), uint32(start + uint32(PAIRS_BYTES)))


@cuda.jit(device=True, forceinline=True)
def mapped(tables, code):
    """The number of the map that a code of an absmax stands for."""
    return ptx.uint_as_float(ptx.load_shared_32(uint32(tables.map + (code << uint32(2)))))


@cuda.jit(device=True, forceinline=True)
def pair_at(copy, word, i):
    """The two numbers of byte i of a word; copy: the shared address of the lane's copy of the table.

    A product of bytes, all of them 0 but one, multiplies byte i by the size of an entry and adds the address, in one instruction.
    """
    return ptx.load_shared_32(ptx.dp4a_u32(word, uint32(ENTRY_BYTES << 8 * i), copy))


def make_fill_pairs(dtype: str):
    """The device function with which `threads` threads write all copies of the table of pairs, [256 bytes, 32 lanes], as bytes.

    A thread writes pairs of one second code, with each of the first codes: so it loads every number once, all at the same time.
    """
    pack = ptx.pack_bf16x2 if dtype == "bfloat16" else ptx.pack_f16x2

    @cuda.jit(device=True, forceinline=True)
    def fill_pairs(pairs, table, thread, threads):
        for column in range(thread, COLUMNS, threads):
            second = table[column * 16 // ENTRY_BYTES]
            for first in range(CODES):
                pair = pack(table[first], second)
                ptx.store_128(pairs, uint32((first * COLUMNS + column) * 16), pair, pair, pair, pair)

    return fill_pairs


def make_fill_tables(dtype: str, threads: int):
    """The device function with which a block of `threads` fills its tables from those of an Nf4Weight."""
    fill_pairs = make_fill_pairs(dtype)

    @cuda.jit(device=True, forceinline=True)
    def fill_tables(table, weight):
        fill_pairs(table, weight.table, int32(cuda.threadIdx.x), threads)
        if weight.map is not None:
            for i in range(int32(cuda.threadIdx.x), MAP_ENTRIES, threads):
                ptx.store_32(table, PAIRS_BYTES + 4 * i, ptx.float_as_uint(float32(weight.map[i])))

    return fill_tables
