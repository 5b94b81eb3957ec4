"""The page that compares all GPUs: each row is the package's plan, and prices that cannot be read are named."""

import random

import pytest

from minllm.machine.hardware import GPUS
from minllm.models.shapes import find_config
from minllm.planning.plan import Wishes, make_plan
from tests.javascript.modules import needs_javascript, run

MODELS = ["llama-3.2-1b", "llama-3.1-8b", "llama-2-70b"]


def expected(case: dict, name: str, price: float | None):
    """[name, batch, step, what binds, cost] of a GPU, or None where the batch does not fit."""
    _, config = find_config(case["model"])
    sizes = dict(context=case["context"], dtype=case["dtype"], kv_dtype=case["kvDtype"], price_per_hour=price)
    batch = case["batch"] or make_plan(config, GPUS[name], Wishes(**sizes)).largest_batch
    if batch < 1:
        return None
    plan = make_plan(config, GPUS[name], Wishes(batch=batch, **sizes))
    return (batch, plan.decode.floor_ms, plan.decode.bound, plan.cost_per_million(plan.decode)) if plan.fits else None


@needs_javascript
def test_every_row_is_the_plan_of_the_package():
    rng = random.Random(8)
    cases = [
        dict(
            model=rng.choice(MODELS),
            dtype=rng.choice(["bfloat16", "int8", "fp8"]),
            kvDtype=rng.choice(["bfloat16", "int8"]),
            context=rng.choice([100, 1024, 8192]),
            batch=rng.choice([None, 1, 16, 200]),
            prices="h200 3.5, A100-80GB 1.25",
        )  # fmt: skip
        for _ in range(12)
    ]
    prices, fits = {"NVIDIA H200": 3.5, "NVIDIA A100-SXM4-80GB": 1.25}, 0
    for case, rows in zip(cases, run("hardware_cost_cases.mjs", "hardware-cost.js", cases), strict=True):
        assert [name for name, _, _ in rows] == list(GPUS), rows
        for name, batch, plan in rows:
            wanted = expected(case, name, prices.get(name))
            assert (plan is None) == (wanted is None), (case, name)
            if plan is not None:
                fits += 1
                assert (batch, plan["bound"]) == (wanted[0], wanted[2])
                assert plan["step"] == pytest.approx(wanted[1], rel=1e-12)
                assert plan["cost"] == (None if wanted[3] is None else pytest.approx(wanted[3], rel=1e-12))
    assert fits > 50


@needs_javascript
def test_prices_that_cannot_be_read_are_named():
    told = {"h200": "“h200” is not a GPU and its price", "h200 -1": "“h200 -1” is not", "h200 1e99": "is not a GPU"}
    told["tpu 3"] = "“tpu” is not one of the GPUs"
    base = dict(model="llama-3.2-1b", dtype="bfloat16", kvDtype="bfloat16", context=100, batch=1)
    answers = run("hardware_cost_cases.mjs", "hardware-cost.js", [dict(base, prices=prices) for prices in told])
    for message, answer in zip(told.values(), answers, strict=True):
        assert message in answer
