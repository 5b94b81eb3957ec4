"""The page about experts computes the load that minllm/costs computes, on random sizes, batches and preferences."""

import random

import pytest

from minllm.costs.experts import choice_probabilities, experts_read, fullest_load
from tests.javascript.modules import needs_javascript, run


@needs_javascript
def test_the_page_loads_experts_as_the_costs_do():
    rng, cases = random.Random(23), []
    for _ in range(60):
        experts = rng.choice([1, 2, rng.randint(3, 256)])
        sizes = dict(experts=experts, chosen=rng.randint(1, min(experts, 16)), tokens=2 ** rng.randint(0, 10))
        cases.append(dict(sizes, skew=rng.choice([0, 0.25, 1, 1.5])))
    for case, theirs in zip(cases, run("expert_load_cases.mjs", "expert-load.js", cases), strict=True):
        ours = choice_probabilities(case["experts"], case["chosen"], case["skew"])
        assert theirs["probabilities"] == pytest.approx(ours, rel=1e-9), case
        assert theirs["read"] == pytest.approx(experts_read(ours, case["tokens"]), rel=1e-9), case
        assert theirs["fullest"] == pytest.approx(fullest_load(ours, case["tokens"]), rel=1e-8), case
