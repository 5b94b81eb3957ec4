"""Acceptance by chance: as often as the rate says, alike in the kernel and in NumPy."""

import numpy as np
import pytest

from minllm.catalogue.speculation.states import RUNS, slots_of
from minllm.kernels.speculation.synthetic import accept_synthetic, accept_synthetic_reference
from tests.kernels.sampling.cases import tensors
from tests.kernels.slots.cases import to_device
from tests.kernels.speculation.cases import make_states


@pytest.mark.parametrize("rate", [0.0, 0.5, 0.8, 1.0])
def test_kernel_and_reference_agree(rate, device):
    state, _ = make_states()
    slots = slots_of(RUNS)
    counts = device.array(np.full(len(slots), -7, np.int32))
    accept_synthetic(device.array(slots), to_device(state, device).sampling, rate, counts)
    found = device.host(counts)
    np.testing.assert_array_equal(found, accept_synthetic_reference(slots, state.sampling, rate))
    if rate in (0.0, 1.0):
        expected = [(1 if rate == 0 else rows) if slot >= 0 and i == 0 else 0 for slot, rows in RUNS for i in range(rows)]
        assert found.tolist() == expected


@pytest.mark.parametrize("rate", [0.3, 0.8])
def test_as_many_drafts_as_the_rate_says(rate):
    """Over 4,000 runs of 1 + 4 rows the numbers of new tokens are geometric, to four standard deviations."""
    runs, length = 4000, 5
    sampling, slots = tensors([dict(seed=7)] * runs, 5), np.repeat(np.arange(runs, dtype=np.int32), length)
    sampling.step[:] = np.arange(runs) * length
    counts = accept_synthetic_reference(slots, sampling, rate)[::length].tolist()
    for new in range(1, length + 1):
        expected = rate ** (new - 1) * (1 - rate if new < length else 1)
        assert abs(counts.count(new) / runs - expected) < 4 * np.sqrt(expected * (1 - expected) / runs)
