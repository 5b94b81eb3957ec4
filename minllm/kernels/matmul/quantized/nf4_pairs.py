"""The table in shared memory that turns a byte of NF4 codes into a register of two 16-bit floats.

A byte holds the codes of two neighbouring inputs, the first in its upper half, so a table of 256 pairs turns it into a register of a tensor
core's operand with one load. Lanes look up different bytes, and shared memory has 32 banks of 4 bytes. So each lane has its own copy of the
table in its own bank, 32 KB in all, and there are no bank conflicts.

    pairs[byte, lane] = (table[byte >> 4], table[byte & 15])

The table is followed by the map of 256 numbers that decodes an 8-bit absmax (double quantisation).
"""

from typing import NamedTuple

from numba import cuda, float32, int32, uint32

from minllm import ptx
from minllm.tiles.warp import WARP

CODES = 16
ENTRY_BYTES = 4 * WARP  # one pair in all its copies
PAIRS_BYTES = CODES * CODES * ENTRY_BYTES
COLUMNS = CODES * ENTRY_BYTES // 16  # 16-byte stores for the pairs that share a first code
MAP_ENTRIES = 256
TABLE_BYTES = PAIRS_BYTES + 4 * MAP_ENTRIES


class Tables(NamedTuple):
    """Shared addresses of the lane's copy of the table of pairs, and of the absmax map."""

    pairs: int
    map: int


@cuda.jit(device=True, forceinline=True)
def tables_at(table):
    """Return the lane's Tables in the shared array `table`."""
    start = ptx.keep_register(ptx.shared_address(table, 0))
    return Tables(uint32(start + uint32(4) * (uint32(cuda.threadIdx.x) & uint32(WARP - 1))), uint32(start + uint32(PAIRS_BYTES)))


@cuda.jit(device=True, forceinline=True)
def mapped(tables, code):
    """Return the number that the map holds for an absmax code."""
    return ptx.uint_as_float(ptx.load_shared_32(uint32(tables.map + (code << uint32(2)))))


@cuda.jit(device=True, forceinline=True)
def pair_at(copy, word, i):
    """Return the pair for byte i of a word; copy: the shared address of the lane's copy of the table.

    One dp4a with three bytes of 0 multiplies byte i by the size of an entry and adds the address.
    """
    return ptx.load_shared_32(ptx.dp4a_u32(word, uint32(ENTRY_BYTES << 8 * i), copy))


def make_fill_tables(dtype: str, threads: int = 0):
    """fill_tables(table, weight): a block of `threads` (0: as many as it has) fills its Tables from an Nf4Weight.

    A thread writes all copies of the pairs of one second code with all first codes, so it loads every number once, all at the same time.
    """
    pack = ptx.pack_bf16x2 if dtype == "bfloat16" else ptx.pack_f16x2

    @cuda.jit(device=True, forceinline=True)
    def fill_tables(table, weight):
        thread, stride = int32(cuda.threadIdx.x), int32(cuda.blockDim.x) if threads == 0 else threads
        for column in range(thread, COLUMNS, stride):
            second = weight.table[column * 16 // ENTRY_BYTES]
            for first in range(CODES):
                pair = pack(weight.table[first], second)
                ptx.store_128(table, uint32((first * COLUMNS + column) * 16), pair, pair, pair, pair)
        if weight.map is not None:
            for i in range(thread, MAP_ENTRIES, stride):
                ptx.store_32(table, PAIRS_BYTES + 4 * i, ptx.float_as_uint(float32(weight.map[i])))

    return fill_tables
