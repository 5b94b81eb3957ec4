"""The launches of the catalogue on a device: the simulator's sizes and larger ones."""

import pytest

from minllm.catalogue import large_launches, odd_launches, small_launches
from tests.gpu.supported import skip_if_not_supported
from tests.kernels.launches import check, code_of

SLOW_TO_COMPILE = ("matmul", "attention")  # and many: a selection of them has all that their code depends on
SMALL = [launch for launch in small_launches() if launch.stage != "all_reduce"]  # which takes several GPUs
OTHERS = [launch for launch in large_launches() + odd_launches() if launch.stage != "all_reduce"]


@pytest.mark.parametrize("launch", [one for one in SMALL if one.stage not in SLOW_TO_COMPILE], ids=str)
def test_results(launch, device):
    skip_if_not_supported(launch)
    check(launch, device)


@pytest.mark.covering.with_args(code_of)
@pytest.mark.parametrize("launch", OTHERS + [one for one in SMALL if one.stage in SLOW_TO_COMPILE], ids=str)
def test_results_of_a_selection(launch, device):
    skip_if_not_supported(launch)
    check(launch, device)
