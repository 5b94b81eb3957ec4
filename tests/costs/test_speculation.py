"""The speed-up of speculation: against counting, and at its limits."""

import numpy as np
import pytest

from minllm.costs.serving import StepCosts
from minllm.costs.speculation import best_num_drafts, expected_tokens, speed_up, wasted_share
from minllm.costs.step_time import StepRates, StepTimes
from minllm.models.shapes import named_config

COSTS, DRAFT = (StepCosts.of(named_config(name), 4.25, 781) for name in ("llama-3.1-8b", "llama-3.2-1b"))
TIMES = StepTimes(named_config("llama-3.1-8b"), StepRates.of(4.25, 781))


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
