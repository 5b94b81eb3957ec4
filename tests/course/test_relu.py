"""The first exercise's kernel against NumPy."""

import numpy as np
import pytest

from minllm.course.relu import BLOCK, relu, relu_reference
from minllm.sim import unwritten


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_relu_is_the_larger_of_each_number_and_zero(size):
    x = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    out = unwritten((size,), np.float32)
    relu(x, out)
    assert out.tolist() == [number if number > 0 else 0 for number in x.tolist()] == relu_reference(x).tolist()
