"""The slots' state on a GPU, and log-probabilities over real vocabularies: the simulator's checks."""

import numpy as np
import pytest

from tests.kernels.sampling.cases import LOGITS, logits_of
from tests.kernels.sampling.test_log_probabilities import check as check_log_probabilities
from tests.kernels.slots import test_advance as advancing
from tests.kernels.slots import test_load_rows as loading
from tests.kernels.slots import test_state as writing


@pytest.mark.parametrize("rows", [1, 70])
def test_load_rows(rows, device):
    loading.test_kernel_and_reference_agree(rows, device)


@pytest.mark.parametrize("rows", [1, 129])
def test_advance_of_slots(rows, device):
    advancing.test_kernel_and_reference_agree(rows, device)


@pytest.mark.parametrize("count", [1, 300])
def test_write_slots(count, device):
    writing.test_kernel_and_reference_write_the_same(count, device)


@pytest.mark.parametrize("kind", LOGITS)
@pytest.mark.parametrize(("vocab", "top"), [(1, 1), (111, 20), (4097, 0), (128256, 20), (262144, 20)])
def test_log_probabilities(vocab, top, kind, device):
    check_log_probabilities(logits_of(kind, 5, vocab), np.array([0, vocab // 2, vocab - 1, 0, 0], np.int32), top, device)
