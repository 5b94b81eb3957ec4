"""Log-probabilities against torch."""

import numpy as np
import pytest

from minllm.kernels.sampling.log_probabilities import log_probabilities_reference, log_softmax
from tests.kernels.sampling.cases import logits_of


@pytest.mark.parametrize("kind", ["normal", "peaked", "masked", "huge"])
def test_log_softmax_is_that_of_torch(kind):
    torch = pytest.importorskip("torch")
    logits = logits_of(kind, 3, 111)
    expected = torch.log_softmax(torch.from_numpy(logits).double(), -1).numpy()
    np.testing.assert_allclose(log_softmax(logits), expected, rtol=2e-6, atol=2e-6)


def test_the_chosen_and_the_best_tokens():
    logits = np.array([[0, 2, 1, 2], [5, 1, 1, 0]], np.float32)
    found = log_probabilities_reference(logits, np.array([2, 0]), top=3)
    np.testing.assert_array_equal(found.rank, [3, 1])
    np.testing.assert_array_equal(found.top_token_ids, [[1, 3, 2], [0, 1, 2]])
    np.testing.assert_allclose(found.top, np.take_along_axis(log_softmax(logits), found.top_token_ids, 1))
    np.testing.assert_allclose(found.chosen, log_softmax(logits)[[0, 1], [2, 0]])


def test_more_tokens_than_there_are_and_none():
    logits = logits_of("normal", 2, 5)
    assert log_probabilities_reference(logits, np.array([0, 1]), top=9).top.shape == (2, 5)
    assert log_probabilities_reference(logits, np.array([0, 1])).top_token_ids.shape == (2, 0)


def test_a_fully_masked_row_is_minus_infinity():
    assert (log_softmax(np.full((1, 4), -np.inf, np.float32)) == -np.inf).all()
