"""Functions on a GPU and in the simulator: within the distance that the simulator's page states, over 3,000 random arguments."""

import numpy as np
import pytest

from minllm.runtime.kernel import kernel
from minllm.sim import simulate
from tests.sim.test_device_functions import MEASURED, SPECIAL_X, kernel_of, ulps

COUNT = 3000


@pytest.mark.parametrize("row", MEASURED, ids=[row[0] for row in MEASURED])
def test_a_function_is_as_near_as_the_page_says(row, device):
    expression, source, dtype, most, *_, specials = row
    random, function = np.random.default_rng(11), kernel_of(expression)
    scale = 10 if len(specials) == len(SPECIAL_X) else 1  # the range over which the distance was measured
    xs, ys = (random.standard_normal((2, COUNT)) * [[scale], [1]]).astype(np.float32).astype(source)
    found = np.zeros(COUNT, dtype)
    there = device.array(found)
    kernel(function)[1, 1](device.array(xs), device.array(ys), there)
    simulate(function, 1, 1, xs, ys, found)
    expected = device.host(there)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(found[~finite], expected[~finite])
    assert (ulps(found[finite], expected[finite]) <= most).all()
