"""The driver on an engine without a model and a virtual clock: when requests enter, and from when their latency counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minllm.bench.serving.metrics import calculate_metrics
from minllm.bench.serving.run import serve, warm_up
from minllm.bench.serving.virtual_clock import VirtualClock
from minllm.bench.serving.workload import BenchRequest
from tests.bench.serving.fake_engine import VOCABULARY, FakeEngine


def requests(*pairs):
    """(arrival, output length), each with a prompt of 4 tokens."""
    return [BenchRequest([1, 2, 3, 4], length, arrival) for arrival, length in pairs]


def served(wanted, max_concurrency=None, **settings):
    clock = VirtualClock(time=100.0)
    engine = FakeEngine(clock, **settings)
    return serve(engine, wanted, clock=clock, max_concurrency=max_concurrency), engine


def test_latency_counts_from_the_arrival():
    """Steps end at 1, 2, 3...; the request that arrives at 0.5 enters the second step, and the one at 10.25 finds an idle engine."""
    run, engine = served(requests((0.0, 3), (0.5, 2), (10.25, 1)))
    first, second, third = run.requests
    assert first.output_times == [1, 2, 3] and (first.ttft, first.tpot, first.e2el) == (1.0, 1.0, 3.0)
    assert second.output_times == [2, 3] and second.ttft == 1.5
    assert third.ttft == pytest.approx(1.0) and third.tpot is None
    assert [time - 100 for _, time, _ in engine.added] == [0.0, 1.0, 10.25]
    assert all(request.succeeded and request.prompt_tokens == 4 for request in run.requests)
    assert [(step.num_tokens, step.num_running) for step in run.steps] == [(1, 1), (2, 2), (2, 0), (1, 0)]


def test_a_held_request_counts_from_the_free_place():
    """One place: the second request is due at 0.25, the place is free at 2; the third arrives later than its place."""
    run, engine = served(requests((0.0, 2), (0.25, 2), (7.0, 1)), max_concurrency=1)
    assert [request.start for request in run.requests] == [0.0, 2.0, 7.0]
    assert [request.ttft for request in run.requests] == [1.0, 1.0, 1.0]
    assert engine.most_running == 1


def test_without_concurrency_limit_waiting_in_the_engine_counts():
    run, engine = served(requests((0.0, 2), (0.0, 2), (0.0, 2)), max_num_seqs=1)
    assert [request.ttft for request in run.requests] == [1.0, 3.0, 5.0]
    assert max(step.num_waiting for step in run.steps) == 2


def test_several_tokens_of_one_step_are_one_output():
    run, _ = served(requests((0.0, 5)), tokens_per_step=2)
    request = run.requests[0]
    assert request.output_times == [1, 2, 3] and request.output_tokens == 5 and request.tpot == 0.5


def test_requests_that_end_otherwise_have_failed():
    run, _ = served(requests((0.0, 3), (0.0, 3), (0.0, 3)), failing=["1"], dropping=["2"])
    assert [request.succeeded for request in run.requests] == [True, False, False]
    found = calculate_metrics(run)
    assert (found.completed, found.failed, found.total_output_tokens) == (1, 2, 3)


def test_counters_start_at_the_start_of_the_run():
    clock = VirtualClock(time=100.0)
    engine = FakeEngine(clock)
    engine.preemptions, engine.queries = 5, 400
    run = serve(engine, requests((0.0, 1), (0.0, 1)), clock=clock)
    assert run.steps[-1].num_preemptions == 0 and (run.prefix_cache_hits, run.prefix_cache_queries) == (2, 8)


def test_an_interrupt_aborts_what_runs():
    clock = VirtualClock(time=100.0)
    engine = FakeEngine(clock)

    def interrupt(progress):
        assert (progress.added, progress.ended) == (2, 1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        serve(engine, requests((0.0, 1), (0.0, 9), (50.0, 1)), clock=clock, on_step=interrupt)
    assert engine.aborted == ["1"] and not engine.has_unfinished_requests()


@given(
    st.lists(st.tuples(st.floats(0, 20), st.integers(1, 6)), min_size=1, max_size=20),
    st.one_of(st.none(), st.integers(1, 5)),
    st.integers(1, 4),
    st.floats(0.01, 3.0),
)
def test_every_request_is_served_and_no_time_is_impossible(pairs, max_concurrency, max_num_seqs, step_seconds):
    wanted = requests(*sorted(pairs))
    run, engine = served(wanted, max_concurrency, max_num_seqs=max_num_seqs, step_seconds=step_seconds)
    assert len(engine.added) == len(wanted) and not engine.has_unfinished_requests() and not engine.aborted
    for request, times in zip(wanted, run.requests, strict=True):
        assert times.succeeded and times.output_tokens == request.output_len == len(times.output_times)
        assert times.start >= request.arrival and times.ttft > 0
    assert sum(step.num_tokens for step in run.steps) == sum(request.output_len for request in wanted)
    if max_concurrency:
        events = sorted([(times.output_times[-1], -1) for times in run.requests] + [(times.start, 1) for times in run.requests])
        open_now = most = 0
        for _, change in events:
            open_now += change
            most = max(most, open_now)
        assert most <= max_concurrency


def test_warm_up_serves_other_prompts_and_few_tokens():
    clock = VirtualClock(time=100.0)
    engine = FakeEngine(clock)
    wanted = [BenchRequest([1] * 30, 100), BenchRequest("text", 100)]
    warm_up(engine, wanted, 3, VOCABULARY, clock)
    prompts = [prompt for _, _, prompt in engine.added]
    assert [len(prompt) for prompt in prompts] == [30, 30, 30] and [1] * 30 not in prompts
    assert engine.steps == 16 and not engine.has_unfinished_requests()
    warm_up(engine, wanted, 0, VOCABULARY, clock)
    assert engine.steps == 16
