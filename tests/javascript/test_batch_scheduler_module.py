"""The scheduler of the page about batching against the package's own: the same spans in the same steps, at the same times."""

import random

import pytest

from minllm.bench.serving.metrics import calculate_metrics
from minllm.bench.serving.simulated import simulate
from minllm.bench.serving.workload import BenchRequest
from minllm.costs.serving import StepCosts
from minllm.engine.scheduling.policies import POLICIES
from minllm.models.config_reader import parse_model_config
from minllm.models.shapes import shape_values
from tests.javascript.modules import needs_javascript, run

CASES, ALL_CASES = 25, 80  # the second with --exhaustive
WINDOWED = dict(
    model_type="mistral", vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=8,
    num_key_value_heads=2, sliding_window=50,
)  # fmt: skip
MODELS = ("llama-3.1-8b", "llama-3.2-1b", "qwen3-8b", "qwen3-30b-a3b", "gpt2", "bundled", WINDOWED)


def random_case(rng: random.Random) -> dict:
    """Requests in order of arrival, some at the same time, and a server that is often too small for them."""
    arrivals = sorted(rng.choice([0.0, rng.random() * 0.3, 2.0]) for _ in range(rng.randint(1, 25)))
    requests = [dict(prompt=rng.choice([1, 15, 300, 900]), output=rng.randint(1, 30), arrival=arrival) for arrival in arrivals]
    options = dict(policy=rng.choice(list(POLICIES)), maxSeqs=rng.choice([1, 3, 64]), budget=rng.choice([1, 16, 200, 2048]))
    rates = dict(bandwidth=rng.uniform(0.3, 5) * 1e12, flops=rng.uniform(50, 1000) * 1e12)
    return dict(model=rng.choice(MODELS), rates=rates, requests=requests, options=options)


def simulated(case: dict):
    """The package's (metrics, steps) for a case."""
    model, options, rates = case["model"], case["options"], case["rates"]
    config = parse_model_config(shape_values(model) if isinstance(model, str) else model)
    costs = StepCosts.of(config, rates["bandwidth"] / 1e12, rates["flops"] / 1e12)
    requests = [BenchRequest([1] * one["prompt"], one["output"], one["arrival"]) for one in case["requests"]]
    sizes = dict(max_num_seqs=options["maxSeqs"], max_num_batched_tokens=options["budget"])
    found, steps = simulate(costs, requests, options["policy"], steps_ahead=0, **sizes)
    return found, steps


@needs_javascript
def test_the_page_schedules_as_the_package_does(request):
    rng = random.Random(14)
    cases = [random_case(rng) for _ in range(ALL_CASES if request.config.option.exhaustive else CASES)]
    answers = run("batch_scheduler_cases.mjs", "batch-scheduler.js", cases)
    seen = set()
    for case, theirs in zip(cases, answers, strict=True):
        found, steps = simulated(case)
        assert len(theirs["steps"]) == len(steps), case
        for one, step in zip(theirs["steps"], steps, strict=True):
            assert one["spans"] == [[int(span.request_id), span.start, span.length, span.decodes] for span in step.spans], case
            assert (one["begin"], one["end"]) == pytest.approx((step.begin, step.end), rel=1e-9), case
        assert [times.output_times for times in found.requests] == [pytest.approx(times, rel=1e-9) for times in theirs["tokens"]]
        ours = calculate_metrics(found)
        for name in ("ttft", "tpot", "itl"):
            expected = getattr(ours, name)
            told = theirs["metrics"][name]
            assert (told is None) == (expected is None)
            if told is not None:
                assert (1e3 * told["mean"], 1e3 * told["p99"]) == pytest.approx((expected.mean, expected.p99), rel=1e-6), (name, case)
        assert theirs["metrics"]["throughput"] == pytest.approx(ours.output_throughput, rel=1e-9)
        seen.add(case["options"]["policy"])
    assert seen == set(POLICIES)
