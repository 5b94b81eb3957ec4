"""The simulated server: the real scheduler, steps one after another, and the times that the step costs say."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minllm.bench.serving.arrivals import arriving
from minllm.bench.serving.metrics import calculate_metrics
from minllm.bench.serving.run import greedy
from minllm.bench.serving.simulated import SimulatedEngine, simulate
from minllm.bench.serving.workload import BenchRequest, Lengths, Workload
from minllm.costs.serving import Load, StepCosts
from minllm.engine.scheduling.policies import POLICIES
from minllm.models.shapes import named_config

COSTS = StepCosts.of(named_config("llama-3.1-8b"), 4.273, 818.6)


def request(prompt, output, arrival=0.0):
    return BenchRequest([1] * prompt, output, arrival)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_alone_takes_its_prefill_and_its_decode_steps(policy):
    run, steps = simulate(COSTS, [request(300, 4, arrival=2.5)], policy)
    [times] = run.requests
    assert times.ttft == pytest.approx(COSTS.seconds(chunks=[(0, 300)]))
    gaps = [after - before for before, after in zip(times.output_times, times.output_times[1:])]
    assert gaps == pytest.approx([COSTS.seconds([context]) for context in (301, 302, 303)])
    assert [(span.start, span.length, span.decodes) for step in steps for span in step.spans] == [
        (0, 300, False), (300, 1, True), (301, 1, True), (302, 1, True)
    ]  # fmt: skip


@pytest.mark.parametrize("ahead, steps_missed", [(0, 1), (1, 2)])
def test_a_request_that_arrives_during_a_step_enters_the_next_that_is_not_planned(ahead, steps_missed):
    begin = COSTS.seconds(chunks=[(0, 300)])
    _, steps = simulate(COSTS, [request(300, 9), request(50, 2, arrival=begin + 1e-6)], steps_ahead=ahead)
    first = next(number for number, step in enumerate(steps) if any(span.request_id == "1" for span in step.spans))
    assert first == 1 + steps_missed  # it arrives during step 1, the first decode step


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(1, 900), st.integers(1, 40), st.floats(0, 0.3)), min_size=1, max_size=12),
    policy=st.sampled_from(list(POLICIES)), seqs=st.integers(1, 6), budget=st.sampled_from([16, 200, 2048]), ahead=st.integers(0, 1),
    blocks=st.sampled_from([60, 1000]),
)  # fmt: skip
def test_all_are_served_by_steps_that_do_not_overlap(requests, policy, seqs, budget, ahead, blocks):
    given_requests = sorted((request(*one) for one in requests), key=lambda one: one.arrival)
    options = dict(max_num_seqs=seqs, max_num_batched_tokens=budget, steps_ahead=ahead, kv_cache_tokens=16 * blocks)
    run, steps = simulate(COSTS, given_requests, policy, **options)
    again, _ = simulate(COSTS, given_requests, policy, **options)
    assert run == again, "the same every time"
    for one, times in zip(given_requests, run.requests, strict=True):
        assert times.succeeded and times.output_tokens == one.output_len
        assert times.ttft >= COSTS.seconds(chunks=[(0, len(one.prompt))]) / 1.001
    for step, following in zip(steps, steps[1:]):
        assert step.begin < step.end <= following.begin
    for step in steps:
        decodes = [span.start + 1 for span in step.spans if span.decodes]
        chunks = [(span.start, span.length) for span in step.spans if not span.decodes]
        assert step.end - step.begin <= COSTS.seconds(decodes, chunks) * (1 + 1e-9)


def test_a_request_that_is_aborted_gives_everything_back():
    engine = SimulatedEngine(COSTS)
    for name in "ab":
        engine.add_request(name, [1] * 4000, greedy(10))
    engine.advance()
    engine.abort_request("a")
    engine.abort_request("b")
    while engine.core.has_work:
        engine.advance()
    assert not engine.has_unfinished_requests() and engine.stats().kv_cache_usage == 0.0 and engine.stats().num_running == 0


def test_the_equations_predict_the_simulation():
    """Prompts first, as the equations have it: TPOT and TTFT within 15 % up to three quarters of the capacity."""
    requests = Workload(600, Lengths((64, 256, 512, 1024)), Lengths((16, 240), is_range=True)).requests()
    load = Load(COSTS, tuple(len(one.prompt) for one in requests), tuple(one.output_len for one in requests))
    for share in (0.25, 0.5, 0.75):
        rate = share * load.capacity
        found = calculate_metrics(simulate(COSTS, arriving(requests, rate), "prefill_first")[0])
        assert found.tpot.mean == pytest.approx(1e3 * load.tpot(rate), rel=0.15)
        assert found.ttft.mean == pytest.approx(1e3 * load.ttft(rate), rel=0.15)


def test_the_knee_is_where_the_equations_have_it():
    """Below capacity the last requests wait no longer than the first hundreds; well above it they wait longer and longer."""
    requests = Workload(1200, Lengths((64, 256, 512, 1024)), Lengths((16, 240), is_range=True)).requests()
    load = Load(COSTS, tuple(len(one.prompt) for one in requests), tuple(one.output_len for one in requests))

    def late_over_early(share):
        run, _ = simulate(COSTS, arriving(requests, share * load.capacity), "prefill_first")
        early, late = run.requests[300:600], run.requests[900:]
        return sum(one.ttft for one in late) / sum(one.ttft for one in early)

    assert late_over_early(0.9) < 1.5 and late_over_early(1.3) > 3
