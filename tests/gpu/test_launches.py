"""The launches of the catalogue on a device, the larger ones first: a selection that has all that their machine code depends on."""

import pytest

from minllm.catalogue import large_launches, odd_launches, small_launches
from tests.gpu.supported import skip_if_not_supported
from tests.kernels.launches import check, code_of

LAUNCHES = [*large_launches(), *odd_launches(), *small_launches()]


@pytest.mark.covering.with_args(code_of)
@pytest.mark.parametrize("launch", [one for one in LAUNCHES if not one.several_gpus], ids=str)
def test_results(launch, device):
    skip_if_not_supported(launch)
    check(launch, device)
