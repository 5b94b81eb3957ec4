"""The log-sum-exp of every kernel that tells it, on a GPU."""

import pytest

from tests.kernels.attention.log_sum_exp_runs import check_log_sum_exp
from tests.kernels.attention.test_log_sum_exp import LAUNCHES


@pytest.mark.parametrize("launch", LAUNCHES, ids=str)
def test_log_sum_exp(device, launch):
    check_log_sum_exp(device, launch)
