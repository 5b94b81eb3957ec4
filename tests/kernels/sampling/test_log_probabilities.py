"""Log-probabilities: the reference against torch, the kernels against the reference."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minllm.errors import KernelArgumentError
from minllm.kernels.sampling.log_probabilities import (
    LogProbabilities,
    LogProbabilitiesScratch,
    log_probabilities,
    log_probabilities_reference,
    log_softmax,
)  # fmt: skip
from tests.conftest import Simulator
from tests.kernels.sampling.cases import LOGITS, logits_of


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


def run(logits, token_ids, top, device):
    """The kernels' results; scratch and results are poisoned first."""

    def poisoned(shape, dtype):
        return device.array(np.full(shape, np.nan if np.dtype(dtype).kind == "f" else -77, dtype))

    rows, vocab = logits.shape
    out = LogProbabilities.allocate(poisoned, rows, top)
    log_probabilities(device.array(logits), device.array(token_ids), out, LogProbabilitiesScratch.allocate(poisoned, rows, vocab, top))
    return LogProbabilities(*map(device.host, out))


def check(logits, token_ids, top, device):
    """Ids and ranks are those of the reference, and log-probabilities as close as a sum in another order allows."""
    found, expected = run(logits, token_ids, top, device), log_probabilities_reference(logits, token_ids, top)
    np.testing.assert_array_equal(found.rank, expected.rank)
    np.testing.assert_array_equal(found.top_token_ids, expected.top_token_ids)
    np.testing.assert_allclose(found.chosen, expected.chosen, rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(found.top, expected.top, rtol=2e-6, atol=2e-6)


CASES = [("normal", 111, 5), ("normal", 1, 1), ("normal", 7, 0), ("ties", 4097, 20), ("masked", 9001, 3)]
OTHER_VALUES = [pytest.param(kind, 111, 5, marks=pytest.mark.results_only) for kind in LOGITS if kind != "normal"]


@pytest.mark.parametrize(("kind", "vocab", "top"), CASES + OTHER_VALUES)
def test_kernels_find_what_the_reference_finds(kind, vocab, top, device, request):
    rows = 3 if kind == "normal" and vocab < 4096 else 1  # every row is a block of its own, and long ones take seconds
    rows = 3 if request.config.option.exhaustive else rows
    token_ids = np.array([vocab - 1, 0, vocab // 2], np.int32)[:rows]
    check(logits_of(kind, rows, vocab), token_ids, top, device)


@pytest.mark.results_only
def test_a_row_that_is_not_finite_has_no_log_probabilities(device):
    logits = logits_of("normal", 4, 61)
    logits[1], logits[2, -1], logits[3, 7] = np.nan, np.nan, np.inf
    token_ids = np.array([-1, 3, 3, 3], np.int32)  # the first row's token could not be chosen
    found, expected = run(logits, token_ids, 2, device), log_probabilities_reference(logits, token_ids, 2)
    for one in (found, expected):
        assert np.isnan(one.chosen).tolist() == np.isnan(one.top).all(axis=1).tolist() == [False, True, True, True]
        assert ((one.top_token_ids >= 0) & (one.top_token_ids < 61)).all()
    np.testing.assert_array_equal(found.top_token_ids[0], expected.top_token_ids[0])
    np.testing.assert_allclose(found.chosen[0], expected.chosen[0], rtol=2e-6, atol=2e-6)


@pytest.mark.results_only
def test_kernels_find_what_the_reference_finds_among_equals(request):
    logits = st.lists(st.sampled_from([-np.inf, -3.5, 0.0, 0.25, 8.0, 88.0]), min_size=1, max_size=40)

    @settings(max_examples=15 if request.config.option.exhaustive else 5, deadline=None)
    @given(logits, st.integers(0, 39), st.integers(0, 20))
    def check_any(values, token, top):
        logits = np.array([values, values[::-1]], np.float32)
        token_ids = np.array([token % len(values), 0], np.int32)
        check(logits, token_ids, min(top, len(values)), Simulator())

    check_any()


def test_too_many_tokens_are_refused():
    with pytest.raises(KernelArgumentError, match="top is 21; it must be at most 20"):
        run(np.zeros((1, 30), np.float32), np.zeros(1, np.int32), 21, Simulator())
    with pytest.raises(KernelArgumentError, match="the vocabulary's 3 tokens"):
        run(np.zeros((1, 3), np.float32), np.zeros(1, np.int32), 4, Simulator())
