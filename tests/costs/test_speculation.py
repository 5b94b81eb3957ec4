"""The speed-up of speculation: against counting, and at its limits."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from minllm.costs.serving import StepCosts
from minllm.costs.speculation import OVERLAP, best_num_drafts, expected_tokens, speed_up, step_seconds, wasted_share
from minllm.models.shapes import named_config

ROOT = Path(__file__).parents[2]
COSTS, DRAFT = (StepCosts.of(named_config(name), 4.25, 781) for name in ("llama-3.1-8b", "llama-3.2-1b"))


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


def test_without_overlap_a_step_grows_as_it_was_measured():
    """The record's decode steps of the 8B shape: with its rows the prediction grows as they do, within a tenth; the floor does not."""
    record = json.loads((ROOT / "docs/results/h200.json").read_text(encoding="utf-8"))
    pattern = r"llama-3\.1-8b \(random weights\), batch (\d+), context 192"
    found = [(re.fullmatch(pattern, row["case"]), row) for row in record["rows"] if row["benchmark"] == "decode step"]
    measured = {int(match[1]): row["value"] for match, row in found if match and row["variant"] == "graph replay"}
    assert len(measured) == 4
    predicted, floor = replace(COSTS, overlap=OVERLAP), COSTS
    for batch, value in measured.items():
        growth = value / measured[1]
        assert step_seconds(predicted, batch, 0) / step_seconds(predicted, 1, 0) == pytest.approx(growth, rel=0.1)
    assert step_seconds(floor, 256, 0) / step_seconds(floor, 1, 0) < 0.7 * growth


def test_a_step_is_no_shorter_without_overlap():
    for rows in (1, 64, 192, 1000):
        none, half, whole = (replace(COSTS, overlap=overlap).linear_seconds(rows, rows) for overlap in (0.0, 0.5, 1.0))
        assert half == pytest.approx((none + whole) / 2) and whole < none <= 2 * whole


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
