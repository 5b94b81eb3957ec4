"""The load of experts, against routers drawn at random and cases by hand."""

import numpy as np
import pytest

from minllm.costs.experts import choice_probabilities, experts_read, fullest_load
from minllm.models.parts.experts import touched_experts
from minllm.models.shapes import named_config


@pytest.mark.parametrize(("experts", "chosen"), [(1, 1), (8, 2), (7, 7), (128, 8)])
@pytest.mark.parametrize("skew", [0.0, 0.5, 1.5])
def test_probabilities_add_up_to_the_experts_of_a_token(experts, chosen, skew):
    found = choice_probabilities(experts, chosen, skew)
    assert len(found) == experts and sum(found) == pytest.approx(chosen) and found == sorted(found, reverse=True)
    assert all(0 < p <= 1 for p in found)
    if skew and found[-2:] != [1, 1]:
        assert experts == 1 or found[-2] / found[-1] == pytest.approx((experts / (experts - 1)) ** skew)


def test_without_preference_the_read_experts_are_those_that_a_plan_counts():
    uniform, config = choice_probabilities(128, 8), named_config("qwen3-30b-a3b")
    for tokens in (1, 16, 64):
        assert experts_read(uniform, tokens) == pytest.approx(touched_experts(config, tokens))


def test_by_hand():
    """2 experts, 1 per token, 2 tokens: both are read in half of the cases. Independent loads of 0, 1, 2 tokens: 1/4, 1/2, 1/4."""
    uniform = choice_probabilities(2, 1)
    assert experts_read(uniform, 2) == 1.5
    assert fullest_load(uniform, 2) == pytest.approx((1 - 1 / 16) + (1 - 9 / 16))
    assert fullest_load(choice_probabilities(3, 3), 5) == 5 and choice_probabilities(4, 2, 3.0)[0] == 1


@pytest.mark.parametrize("tokens", [16, 64, 1024])
def test_the_fullest_expert_is_that_of_drawn_routers(tokens):
    random = np.random.default_rng(tokens)
    drawn = [random.random((tokens, 128)).argpartition(8, axis=1)[:, :8] for _ in range(100)]
    mean = np.mean([np.bincount(one.ravel(), minlength=128).max() for one in drawn])
    assert fullest_load(choice_probabilities(128, 8), tokens) == pytest.approx(mean, rel=0.03)
