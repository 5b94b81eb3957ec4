"""Every launch of the catalogue on a device: the simulator's sizes and larger ones."""

import pytest

from minllm.catalogue import large_launches, small_launches
from tests.kernels.launches import check

EVERY = [launch for launch in small_launches() + large_launches() if launch.stage != "all_reduce"]  # these take several GPUs


@pytest.mark.parametrize("launch", EVERY, ids=str)
def test_results(launch, device):
    check(launch, device)
