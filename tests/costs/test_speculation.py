"""The speed-up of speculation: against counting, and at its limits."""

import numpy as np
import pytest

from minllm.costs.serving import StepCosts
from minllm.costs.speculation import TRIAL_STEPS, best_num_drafts, expected_tokens, speed_up, step_seconds, trial_interval, wasted_share
from minllm.costs.step_time import HOST_LAUNCH, StepRates, StepTimes
from minllm.models.shapes import named_config

COSTS, DRAFT = (StepCosts.of(named_config(name), 4.25, 781) for name in ("llama-3.1-8b", "llama-3.2-1b"))
TIMES, DRAFT_TIMES = (StepTimes(named_config(name), StepRates.of(4.25, 781)) for name in ("llama-3.1-8b", "llama-3.2-1b"))


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.6, 0.8, 0.9, 1.0])
@pytest.mark.parametrize("drafts", [0, 1, 4, 8])
def test_expected_tokens_by_counting(acceptance, drafts):
    is_right = np.random.default_rng(drafts).random((100_000, drafts)) < acceptance
    counted = 1 + np.cumprod(is_right, axis=1).sum(axis=1).mean() if drafts else 1
    assert expected_tokens(acceptance, drafts) == pytest.approx(counted, rel=0.02)
    assert wasted_share(acceptance, drafts) == pytest.approx(1 - counted / (1 + drafts), abs=0.02)
    if acceptance < 1:
        assert expected_tokens(acceptance, drafts) == pytest.approx((1 - acceptance ** (drafts + 1)) / (1 - acceptance))


def test_drafts_are_free_below_the_ridge_and_not_above():
    assert speed_up(COSTS, 0.8, 1, 4) == pytest.approx(expected_tokens(0.8, 4), rel=0.01)
    assert speed_up(COSTS, 0.8, 1, 4) > 3.3
    assert speed_up(COSTS, 0.8, 512, 4) < 1
    assert speed_up(COSTS, 0.5, 8, 0) == 1


def test_near_the_truth_each_row_costs_something_and_beyond_256_whole_tiles_do():
    seconds = [TIMES.linear_seconds(rows, rows) for rows in (1, 5, 64, 128, 256, 257, 384, 385)]
    assert sorted(seconds) == seconds and seconds[5] > 1.2 * seconds[4] and seconds[6] < 1.05 * seconds[5]
    assert all(TIMES.linear_seconds(rows, rows) > COSTS.linear_seconds(rows, rows) for rows in (64, 256, 2048))
    assert best_num_drafts(TIMES, 0.9, 64, 4) == 3 and best_num_drafts(TIMES, 0.9, 64, 8) == 5, "2 and 3 whole tiles"


def test_a_draft_model_has_to_be_worth_its_time():
    with_model = speed_up(COSTS, 0.8, 1, 4, DRAFT)
    assert 1 < with_model < speed_up(COSTS, 0.8, 1, 4)
    assert speed_up(COSTS, 0.1, 1, 4, DRAFT) < 1


def test_the_best_number_of_drafts():
    for acceptance in (0.2, 0.6, 0.9):
        for sequences in (1, 16, 64, 256):
            for draft in (None, DRAFT):
                best = best_num_drafts(COSTS, acceptance, sequences, 8, draft)
                gains = [speed_up(COSTS, acceptance, sequences, k, draft) for k in range(9)]
                assert gains[best] == max(gains) >= 1
    assert best_num_drafts(COSTS, 0.9, 1, 8) == 8
    assert best_num_drafts(COSTS, 0.3, 512, 8) == 0 == best_num_drafts(COSTS, 0.1, 1, 8, DRAFT)


@pytest.mark.parametrize("sequences", [1, 7, 64])
def test_trials_of_a_draft_model_take_a_hundredth_of_the_time(sequences):
    interval = trial_interval(TIMES, sequences, 4, DRAFT_TIMES, catch_up=0.01)
    plain, wasted = (step_seconds(TIMES, sequences, k, DRAFT_TIMES) for k in (0, 4))
    lost = 0.01 + TRIAL_STEPS * (wasted - plain)
    assert lost / (interval * plain) == pytest.approx(0.01, rel=0.01) and 100 < interval < 10_000


def test_a_draft_model_that_cannot_gain_is_never_tried():
    """It is as large as the model."""
    assert trial_interval(TIMES, 1, 1, TIMES, catch_up=0.0) is None and speed_up(TIMES, 1.0, 1, 1, TIMES, 1) < 1


def test_more_drafts_are_made_than_verified():
    """The draft model makes four in any case: the last ones are wasted, and the number that is best is never smaller for that."""
    assert speed_up(TIMES, 0.5, 1, 1, DRAFT_TIMES, 4) < speed_up(TIMES, 0.5, 1, 1, DRAFT_TIMES)
    assert speed_up(TIMES, 0.9, 1, 4, DRAFT_TIMES, 4) == speed_up(TIMES, 0.9, 1, 4, DRAFT_TIMES)
    assert best_num_drafts(TIMES, 0.7, 1, 4, DRAFT_TIMES, 4) >= best_num_drafts(TIMES, 0.7, 1, 4, DRAFT_TIMES) > 0


def test_a_forward_of_launches_takes_as_long_as_they_do_or_as_its_weights():
    assert DRAFT_TIMES.launched_seconds(1) == DRAFT_TIMES.launched_seconds(64) > 5 * DRAFT_TIMES.linear_seconds(64, 0)
    assert DRAFT_TIMES.launched_seconds(8192) == DRAFT_TIMES.linear_seconds(8192, 0)


def test_a_forward_without_logits_launches_no_head():
    """The embedding, and nine kernels per layer."""
    assert DRAFT_TIMES.launched_seconds(1) == pytest.approx(HOST_LAUNCH * (1 + 9 * DRAFT_TIMES.config.num_hidden_layers))
