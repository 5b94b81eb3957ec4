"""How a row is spread over one block's registers: whole 128-bit vectors, one or more per thread.

A vector per thread gives the shortest time for a single row. Several give the most rows per second: a thread has more loads in flight, and
what a block does once (reductions, divisions, addresses) is shared by more numbers.
"""

from minllm.kernels.arguments import ceil_div
from minllm.kernels.vector import VECTOR_BYTES, vectors_per_row
from minllm.tiles.warp import WARP

THREADS = 1024  # the most threads that a block can have
HELD = 16  # float32 values of the row per thread; weights take the same number of registers, and 1,024 threads have 64 each
SHORT_BLOCK, LONG_BLOCK = 128, 512  # threads of a block that holds several vectors per thread: if those are enough, and the most
HELD_IN_SHORT_BLOCK = 32  # float32 values, or words, of the row per thread


def row_in_registers(hidden, *arrays):
    """(threads per block, vectors per thread) for rows of `hidden` elements.

    None if rows are unaligned or too long for the registers.
    """
    vectors = vectors_per_row(hidden, *arrays)
    pieces = ceil_div(vectors, THREADS)
    if not 1 <= pieces <= HELD * arrays[0].dtype.itemsize // VECTOR_BYTES:
        return None
    return ceil_div(ceil_div(vectors, pieces), WARP) * WARP, pieces


def row_in_short_block(hidden, held, *arrays, wanted=SHORT_BLOCK):
    """(threads per block, vectors per thread) for rows of `hidden` elements, with few threads per row.

    held: registers per vector. wanted: threads, if the registers of those are enough. None if rows are unaligned or too long for all.
    """
    vectors = vectors_per_row(hidden, *arrays)
    pieces = min(ceil_div(vectors, wanted), HELD_IN_SHORT_BLOCK // held)
    if pieces == 0 or vectors > pieces * LONG_BLOCK:
        return None
    return ceil_div(ceil_div(vectors, pieces), WARP) * WARP, pieces
