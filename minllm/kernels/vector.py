"""128-bit vectors: loads and stores of 16 bytes per thread, the widest, converted from and to float32.

A vector is 16 bytes: 4 float32, or 8 bfloat16 or float16. `vector_access(dtype)` gives the device functions for one dtype:

    load(array, index, values, at)     values[at : at + width] = the vector at flat `index` of a C-contiguous array
    store(array, index, values, at)    writes the vector rounded to the array's dtype, and leaves the rounded numbers in `values`

`values` is a float32 cuda.local.array; if `at` is a compile-time constant it is in registers. Index and array must be aligned to 16
bytes (PTX ISA, "ld", alignment of vector operands): launchers check this with `vectors_per_row`, and otherwise use a plain loop.

A warp continues after a load until the first use of its result. `load` uses it at once, to convert it to float32, and under an `if` the
compiler moves no later load above that use. To have several loads in flight at once, split them into two steps, all loads first and then
all conversions:

    load_words(array, index, words, at)    words[at : at + 4] = the vector as in memory, 4 uint32
    unpack(words, word, values, at)        values[at : at + width] = the vector words[word : word + 4]; unpack = vector_unpack(dtype)
"""

import ml_dtypes
import numpy as np
from numba import cuda, uint32

from minllm.kernels.arguments import address
from minllm.ptx import float_as_uint, load_128, pack_bf16x2, pack_f16x2, store_128, uint_as_float, unpack_bf16x2, unpack_f16x2

VECTOR_BYTES = 16


@cuda.jit(device=True)
def load_words(array, index, words, at):
    """words[at : at + 4] = the 16 bytes from element `index` on, for any dtype."""
    words[at], words[at + 1], words[at + 2], words[at + 3] = load_128(array, index)


@cuda.jit(device=True)
def unpack_4_float32(words, word, values, at):
    """values[at : at + 4] = the 4 float32 in words[word : word + 4]."""
    for k in range(4):
        values[at + k] = uint_as_float(words[word + k])


@cuda.jit(device=True)
def store_4_float32(array, index, values, at):
    """Store 4 float32 from values[at : at + 4]."""
    word0, word1 = float_as_uint(values[at]), float_as_uint(values[at + 1])
    word2, word3 = float_as_uint(values[at + 2]), float_as_uint(values[at + 3])
    store_128(array, index, word0, word1, word2, word3)


def make_load(unpack):
    """The device function `load` of vectors that `unpack` converts."""

    @cuda.jit(device=True)
    def load(array, index, values, at):
        words = cuda.local.array(4, uint32)
        load_words(array, index, words, 0)
        unpack(words, 0, values, at)

    return load


load_4_float32 = make_load(unpack_4_float32)


def make_halves(pack, unpack_pair):
    """(width, load, store, unpack) for numbers of 16 bits; pack and unpack_pair: the instructions that convert two of them."""

    @cuda.jit(device=True)
    def unpack(words, word, values, at):
        """values[at : at + 8] = the 8 numbers in words[word : word + 4]."""
        for k in range(4):
            values[at + 2 * k], values[at + 2 * k + 1] = unpack_pair(words[word + k])

    @cuda.jit(device=True)
    def store(array, index, values, at):
        """Store 8 numbers from values[at : at + 8], and leave the rounded numbers there."""
        word0, word1 = pack(values[at], values[at + 1]), pack(values[at + 2], values[at + 3])
        word2, word3 = pack(values[at + 4], values[at + 5]), pack(values[at + 6], values[at + 7])
        store_128(array, index, word0, word1, word2, word3)
        values[at], values[at + 1] = unpack_pair(word0)
        values[at + 2], values[at + 3] = unpack_pair(word1)
        values[at + 4], values[at + 5] = unpack_pair(word2)
        values[at + 6], values[at + 7] = unpack_pair(word3)

    return 8, make_load(unpack), store, unpack


ACCESS = {
    np.dtype(np.float32): (4, load_4_float32, store_4_float32, unpack_4_float32),
    np.dtype(np.float16): make_halves(pack_f16x2, unpack_f16x2),
    np.dtype(ml_dtypes.bfloat16): make_halves(pack_bf16x2, unpack_bf16x2),
}


def vector_access(dtype):
    """(width, load, store) for vectors of `dtype`: float32, float16 or bfloat16. width: elements per vector."""
    return ACCESS[np.dtype(dtype)][:3]


def vector_unpack(dtype):
    """The device function `unpack` for vectors of `dtype`: the second step of a load."""
    return ACCESS[np.dtype(dtype)][3]


def vectors_per_row(row, *arrays):
    """Vectors per row of `row` elements; 0 if rows are not whole vectors or an array is not aligned to 16 bytes."""
    itemsize = arrays[0].dtype.itemsize
    if row * itemsize % VECTOR_BYTES or any(address(array) % VECTOR_BYTES for array in arrays):
        return 0
    return row * itemsize // VECTOR_BYTES
