"""Every launch of the catalogue on a device: the simulator's sizes and larger ones."""

import pytest

from minllm.catalogue import large_launches, small_launches
from tests.kernels.launches import check


@pytest.mark.parametrize("launch", small_launches() + large_launches(), ids=str)
def test_results(launch, device):
    check(launch, device)
