"""Log-probabilities over real vocabularies on a GPU: the simulator's checks."""

import numpy as np
import pytest

from tests.kernels.sampling.cases import LOGITS, logits_of
from tests.kernels.sampling.test_log_probabilities import check as check_log_probabilities


@pytest.mark.parametrize("kind", LOGITS)
@pytest.mark.parametrize(("vocab", "top"), [(1, 1), (111, 20), (4097, 0), (128256, 20), (262144, 20)])
def test_log_probabilities(vocab, top, kind, device):
    check_log_probabilities(logits_of(kind, 5, vocab), np.array([0, vocab // 2, vocab - 1, 0, 0], np.int32), top, device)
