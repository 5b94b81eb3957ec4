"""Sums of products on a GPU and in the simulator, with contraction and without: the same bits."""

import numpy as np
import pytest

from minllm.runtime.kernel import kernel
from minllm.sim import simulate
from tests.sim.test_contraction import CASES, SCALAR, all_cases


@pytest.mark.parametrize("contract", [True, False])
def test_the_gpu_and_the_simulator_round_at_the_same_places(contract, device):
    function, _ = all_cases()
    x = np.random.default_rng(7).standard_normal((len(CASES), 4, 64)).astype(np.float32)
    out = np.zeros((len(CASES), 2, 64), np.float32)
    there, made = device.array(out), kernel(function) if contract else kernel(function).without_contraction()
    made[1, 64](device.array(x), SCALAR, there)
    simulate(made, 1, 64, x, SCALAR, out)
    found = device.host(there)
    different = [name for name, one, other in zip(CASES, found, out) if one.tobytes() != other.tobytes()]
    assert not different
