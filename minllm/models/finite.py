"""Tests a tensor of floating-point numbers for NaN and infinity, on the bits.

A number is NaN or infinite if all bits of its exponent are set. `word & exponent == exponent` needs no conversion of 16-bit floats, and
with pieces that fit in the L2 cache memory is read only once. This is the first pass over a tensor of a mapped file, so several threads
read the file at once.
"""

import ml_dtypes
import numpy as np

from minllm.runtime.host_threads import THREADS, host_threads

PIECE_BYTES = 1 << 18
THREADED_BYTES = 1 << 23  # smaller tensors are checked faster than threads start
PARTS_PER_THREAD = 4  # other threads take over the last parts of a slow one
EXPONENTS: dict[np.dtype, np.unsignedinteger] = {  # dtype -> mask of the exponent, an unsigned integer of its size
    np.dtype(ml_dtypes.bfloat16): np.uint16(0x7F80),
    np.dtype(np.float16): np.uint16(0x7C00),
    np.dtype(np.float32): np.uint32(0x7F80_0000),
    np.dtype(np.float64): np.uint64(0x7FF0_0000_0000_0000),
}


def all_finite(values: np.ndarray) -> bool:
    """Whether every number of a contiguous bfloat16, float16, float32 or float64 array is finite."""
    exponent = EXPONENTS[values.dtype]
    words = values.reshape(-1).view(exponent.dtype)
    if words.nbytes < THREADED_BYTES:
        return below(words, exponent)
    part = -(-words.size // (PARTS_PER_THREAD * THREADS))
    with host_threads() as threads:
        return all(threads.map(lambda start: below(words[start : start + part], exponent), range(0, words.size, part)))


def below(words: np.ndarray, exponent: np.unsignedinteger) -> bool:
    """Whether no word has all bits of the exponent set."""
    piece = PIECE_BYTES // words.itemsize
    buffer = np.empty(min(piece, words.size), words.dtype)
    for start in range(0, words.size, piece):
        part = words[start : start + piece]
        if np.bitwise_and(part, exponent, out=buffer[: part.size]).max() == exponent:
            return False
    return True
