"""The table that makes a byte of NF4 codes a register of two 16-bit floats, in shared memory.

A byte holds the codes of two neighbouring inputs, the first in its upper half, so a table of 256 pairs turns it into a register of a tensor
core's operand with one load. Lanes look up different bytes, and shared memory has 32 banks of 4 bytes: each lane has a copy of the table in
a bank of its own, 32 KB in all, so that none waits for another.

    pairs[byte, lane] = (table[byte >> 4], table[byte & 15])
"""

from numba import cuda, int32

from minllm import ptx
from minllm.tiles.warp import WARP

ENTRIES = 256
ENTRY_SHIFT = 7  # log2 of the bytes of an entry's copies, 4 per lane
COPIES = ENTRIES * WARP
PAIRS_BYTES = 4 * COPIES


def make_fill_pairs(dtype: str):
    """The device function with which threads write all copies of the table of pairs, [256 bytes, 32 lanes], as bytes."""
    pack = ptx.pack_bf16x2 if dtype == "bfloat16" else ptx.pack_f16x2

    @cuda.jit(device=True, forceinline=True)
    def fill_pairs(pairs, table, thread, threads):
        item = int32(thread)
        while item < COPIES // 4:  # four copies at a time
            byte = item // (WARP // 4)
            pair = pack(table[byte >> 4], table[byte & 15])
            ptx.store_128(pairs, 16 * item, pair, pair, pair, pair)
            item = int32(item + threads)

    return fill_pairs
