"""128-bit vectors as float32: what is loaded, what is stored, and what is left in the registers."""

import numpy as np
import pytest
from numba import cuda, float32

from minllm.kernels.vector import vector_access, vectors_a_row
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


def test_rows_of_whole_aligned_vectors():
    memory = np.zeros(64, BFLOAT16)
    assert memory.ctypes.data % 16 == 0
    assert vectors_a_row(16, memory, memory[8:]) == 2
    assert vectors_a_row(12, memory) == 0  # one and a half vectors
    assert vectors_a_row(16, memory, memory[4:]) == 0  # 8 bytes off
    assert vectors_a_row(4, np.zeros(4, np.float32)) == 1 and vectors_a_row(4, np.zeros(4, FLOAT16)) == 0
