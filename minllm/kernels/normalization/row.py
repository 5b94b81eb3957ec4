"""How a row is spread over the registers of one block: whole 128-bit vectors, one or a few a thread."""

from minllm.kernels.arguments import ceil_div
from minllm.kernels.vector import VECTOR_BYTES, vectors_a_row

THREADS = 1024  # the most that a block has
HELD = 16  # float32 values of the row that a thread holds; its weights take as many registers, of 64 that each of 1,024 threads has


def row_in_registers(hidden, *arrays):
    """(threads a block, vectors a thread) for rows of `hidden` elements, or None where rows are unaligned or too long to be held."""
    vectors = vectors_a_row(hidden, *arrays)
    pieces = ceil_div(vectors, THREADS)
    if not 1 <= pieces <= HELD * arrays[0].dtype.itemsize // VECTOR_BYTES:
        return None
    return ceil_div(ceil_div(vectors, pieces), 32) * 32, pieces
