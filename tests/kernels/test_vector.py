"""128-bit vectors as float32: what is loaded, what is stored, and what is left in the registers."""

import numpy as np
import pytest
from numba import cuda, float32, uint32

from minllm.kernels.vector import load_words, vector_access, vector_unpack, vectors_per_row
from minllm.runtime.kernel import kernel, launch
from tests.kernels.guarded import BFLOAT16, DTYPES, FLOAT16, bits, random


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_load_and_store(dtype, device):
    width, load, store = vector_access(dtype)

    @kernel
    def third_kernel(x, out, left):
        """A third of each element: rarely a number of the dtype, so that the store rounds."""
        values = cuda.local.array(width, float32)
        i = cuda.threadIdx.x * width
        load(x, i, values, 0)
        for k in range(width):
            values[k] /= float32(3)
        store(out, i, values, 0)
        for k in range(width):
            left[i + k] = values[k]

    x = random(8 * width, dtype, 0)
    out, left = device.array(np.full_like(x, np.nan)), device.array(np.full(8 * width, np.nan, np.float32))
    launch(third_kernel, 1, 8, (device.array(x), out, left))
    expected = (x.astype(np.float32) / np.float32(3)).astype(dtype)
    np.testing.assert_array_equal(bits(device.host(out)), bits(expected))
    np.testing.assert_array_equal(device.host(left), expected.astype(np.float32))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_load_in_two_steps(dtype, device):
    width, unpack = vector_access(dtype)[0], vector_unpack(dtype)
    two_vectors = 2 * width

    @kernel
    def reverse_kernel(x, out):
        """Two vectors a thread, both loaded before either is unpacked, and unpacked in the other order."""
        words, values = cuda.local.array(8, uint32), cuda.local.array(two_vectors, float32)
        i = 2 * cuda.threadIdx.x * width
        load_words(x, i, words, 0)
        load_words(x, i + width, words, 4)
        unpack(words, 4, values, 0)
        unpack(words, 0, values, width)
        for k in range(2 * width):
            out[i + k] = values[k]

    x, out = random(8 * width, dtype, 0), device.array(np.full(8 * width, np.nan, np.float32))
    launch(reverse_kernel, 1, 4, (device.array(x), out))
    expected = x.astype(np.float32).reshape(4, 2, width)[:, ::-1]
    np.testing.assert_array_equal(device.host(out), expected.reshape(-1))


def test_rows_of_whole_aligned_vectors():
    memory = np.zeros(64, BFLOAT16)
    assert memory.ctypes.data % 16 == 0
    assert vectors_per_row(16, memory, memory[8:]) == 2
    assert vectors_per_row(12, memory) == 0  # one and a half vectors
    assert vectors_per_row(16, memory, memory[4:]) == 0  # 8 bytes off
    assert vectors_per_row(4, np.zeros(4, np.float32)) == 1 and vectors_per_row(4, np.zeros(4, FLOAT16)) == 0
