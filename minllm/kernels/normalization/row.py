"""How a row is spread over one block's registers: whole 128-bit vectors, one or more per thread."""

from minllm.kernels.arguments import ceil_div
from minllm.kernels.vector import VECTOR_BYTES, vectors_per_row
from minllm.tiles.warp import WARP

THREADS = 1024  # the most threads that a block can have
HELD = 16  # float32 values of the row per thread; weights take the same number of registers, and 1,024 threads have 64 each


def row_in_registers(hidden, *arrays):
    """(threads per block, vectors per thread) for rows of `hidden` elements.

    None if rows are unaligned or too long for the registers.
    """
    vectors = vectors_per_row(hidden, *arrays)
    pieces = ceil_div(vectors, THREADS)
    if not 1 <= pieces <= HELD * arrays[0].dtype.itemsize // VECTOR_BYTES:
        return None
    return ceil_div(ceil_div(vectors, pieces), WARP) * WARP, pieces
