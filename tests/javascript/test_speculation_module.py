"""The page about speculation computes what minllm/costs computes, on random models, GPUs, batches and rates of acceptance."""

import random

import pytest

from minllm.costs.serving import StepCosts
from minllm.costs.speculation import best_num_drafts, expected_tokens, speed_up, step_seconds, wasted_share
from minllm.models.config_reader import parse_model_config
from minllm.models.shapes import shape_values
from tests.javascript.modules import needs_javascript, run

CASES = 200
MODELS = ("llama-3.1-8b", "llama-3.2-1b", "qwen3-8b", "qwen3-30b-a3b", "gpt2", "bundled")


def random_case(rng: random.Random) -> dict:
    """Rates of acceptance and numbers of drafts include the ends of their ranges."""
    return dict(
        model=rng.choice(MODELS), draftModel=rng.choice([None, None, *MODELS]), acceptance=rng.choice([0, 1, rng.random(), rng.random()]),
        rates=dict(bandwidth=rng.uniform(0.3, 8) * 1e12, flops=rng.uniform(20, 2000) * 1e12), sequences=2 ** rng.randint(0, 10),
        drafts=rng.choice([0, 1, rng.randint(2, 16), 64]), most=rng.choice([0, 1, 8, 16]),
    )  # fmt: skip


def step_costs(model: str | None, rates: dict) -> StepCosts | None:
    """None for drafts that cost nothing."""
    if model is None:
        return None
    return StepCosts.of(parse_model_config(shape_values(model)), rates["bandwidth"] / 1e12, rates["flops"] / 1e12)


@needs_javascript
def test_the_page_speculates_as_the_costs_do():
    rng = random.Random(19)
    cases = [random_case(rng) for _ in range(CASES)]
    best = set()
    for case, theirs in zip(cases, run("speculation_cases.mjs", "speculation.js", cases), strict=True):
        costs, draft = (step_costs(case[name], case["rates"]) for name in ("model", "draftModel"))
        acceptance, sequences, drafts = case["acceptance"], case["sequences"], case["drafts"]
        ours = dict(
            ridge=costs.ridge, tokens=expected_tokens(acceptance, drafts), wasted=wasted_share(acceptance, drafts),
            seconds=step_seconds(costs, sequences, drafts, draft), speedUp=speed_up(costs, acceptance, sequences, drafts, draft),
        )  # fmt: skip
        assert {name: theirs[name] for name in ours} == pytest.approx(ours, rel=1e-9, abs=1e-12), case
        wanted = best_num_drafts(costs, acceptance, sequences, case["most"], draft)
        # Two numbers of drafts may be equally good but for rounding.
        reached, most = (speed_up(costs, acceptance, sequences, count, draft) for count in (theirs["best"], wanted))
        assert 0 <= theirs["best"] <= case["most"] and reached == pytest.approx(most, rel=1e-9), case
        best.add(wanted)
    assert {0, 1} < best
