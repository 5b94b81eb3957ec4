"""Serving metrics, against examples computed by hand and against vLLM's definitions written once more over padded NumPy matrices."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minllm.bench.serving.metrics import Distribution, RequestTimes, ServedRun, StepSample, calculate_metrics, parse_goodput
from minllm.errors import InvalidOptionError


def example():
    """Two requests and a failed one: the first starts at 1 s and gets tokens at 1.5, 1.6, 1.8 s; the second at 2 s and gets one at 4 s."""
    return [
        RequestTimes(10, 1.0, [1.5, 1.6, 1.8], 3, True),
        RequestTimes(30, 2.0, [4.0], 1, True),
        RequestTimes(99, 0.0, [0.1], 1, False),
    ]


def test_metrics_by_hand():
    found = calculate_metrics(ServedRun(example(), []), dict(ttft=600.0))
    assert (found.completed, found.failed, found.duration) == (2, 1, 4.0)
    assert (found.total_input_tokens, found.total_output_tokens) == (40, 4)
    assert (found.request_throughput, found.output_throughput, found.total_token_throughput) == (0.5, 1.0, 11.0)
    assert found.request_goodput == 0.25  # only the first has its first token within 600 ms
    assert found.ttft.mean == pytest.approx((500 + 2000) / 2) and found.ttft.p50 == pytest.approx(1250)
    assert found.ttft.p99 == pytest.approx(500 + 0.99 * 1500)
    assert found.tpot.mean == pytest.approx(150) == found.tpot.p99  # (0.8 - 0.5) / 2; the second request has none
    assert found.itl.mean == pytest.approx(150) and found.itl.p50 == pytest.approx(150) and found.itl.p95 == pytest.approx(195)
    assert found.e2el.mean == pytest.approx((800 + 2000) / 2)


def test_goodput_by_hand():
    """The request without TPOT meets every limit on it; all limits together have to be met."""
    run = ServedRun(example(), [])
    cases = {"tpot:151": 2, "tpot:149": 1, "ttft:2000 e2el:2000": 2, "ttft:2001 e2el:1999": 1, "ttft:499": 0, "ttft:2001 tpot:100": 1}
    for text, good in cases.items():
        assert calculate_metrics(run, parse_goodput([text])).request_goodput == pytest.approx(good / 4.0), text
    assert calculate_metrics(run).request_goodput is None


def test_the_engine_over_time():
    steps = [StepSample(0.1, 3, 5, 0.25, 0, 3), StepSample(0.2, 8, 2, 0.75, 1, 8), StepSample(0.3, 1, 0, 0.5, 2, 1)]
    found = calculate_metrics(ServedRun(example(), steps, prefix_cache_hits=16, prefix_cache_queries=64))
    assert (found.num_steps, found.max_running, found.max_waiting, found.max_kv_cache_usage) == (3, 8, 5, 0.75)
    assert (found.num_preemptions, found.prefix_cache_hit_rate) == (2, 0.25)


@pytest.mark.parametrize("requests", [[], [RequestTimes(5, 0.0)], [RequestTimes(5, 0.0, [1.0], 1, False)]])
def test_a_run_in_which_nothing_succeeds(requests):
    found = calculate_metrics(ServedRun(requests, []), dict(ttft=1.0))
    assert found.completed == 0 and found.failed == len(requests)
    assert found.output_throughput == found.request_goodput == found.duration == 0.0
    assert found.ttft is found.tpot is found.itl is found.e2el is None and found.prefix_cache_hit_rate is None


GAP = st.floats(1e-4, 5.0)
REQUEST = st.tuples(st.integers(1, 500), st.floats(0, 50), st.lists(GAP, min_size=1, max_size=8), st.integers(0, 30), st.booleans())


@given(st.lists(REQUEST, min_size=1, max_size=12), st.floats(0, 10_000), st.floats(0, 5000))
def test_metrics_are_vllms_formulas(drawn, ttft_limit, tpot_limit):
    requests = []
    for prompt, start, gaps, more, succeeded in drawn:
        times = (start + np.cumsum(gaps)).tolist()
        requests.append(RequestTimes(prompt, start, times, len(gaps) + more, succeeded))
    found = calculate_metrics(ServedRun(requests, []), dict(ttft=ttft_limit, tpot=tpot_limit))

    # [requests, outputs], NaN after the last output of each
    done = [request for request in drawn if request[4]]
    if not done:
        return
    gaps = np.full((len(done), 8), np.nan)
    for row, request in enumerate(done):
        gaps[row, : len(request[2])] = request[2]
    counts = np.array([len(request[2]) + request[3] for request in done])
    ttft, latency = gaps[:, 0], np.nansum(gaps, axis=1)
    has_tpot = counts > 1
    tpot = np.where(has_tpot, (latency - ttft) / np.maximum(counts - 1, 1), 0.0)
    itl = gaps[:, 1:][~np.isnan(gaps[:, 1:])]
    duration = max(request[1] + sum(request[2]) for request in done)
    for distribution, values in ((found.ttft, ttft), (found.tpot, tpot[has_tpot]), (found.itl, itl), (found.e2el, latency)):
        assert (distribution is None) == (len(values) == 0)
        if len(values):
            ordered, middle = np.sort(values), (len(values) - 1) * np.array([0.5, 0.95, 0.99])
            below = np.floor(middle).astype(int)
            above = np.minimum(below + 1, len(values) - 1)
            percentiles = ordered[below] + (middle - below) * (ordered[above] - ordered[below])
            expected = 1e3 * np.array([values.mean(), *percentiles])
            actual = [distribution.mean, distribution.p50, distribution.p95, distribution.p99]
            np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)
    assert found.output_throughput == pytest.approx(counts.sum() / duration)
    assert found.total_token_throughput == pytest.approx((counts.sum() + sum(request[0] for request in done)) / duration)
    clear = np.abs(np.array([1e3 * ttft - ttft_limit, 1e3 * tpot - tpot_limit])) > 1e-6  # rounding decides what lies on a limit
    if clear.all():
        good = (1e3 * ttft <= ttft_limit) & (1e3 * tpot <= tpot_limit)
        assert found.request_goodput == pytest.approx(good.sum() / duration)


def test_a_distribution_of_nothing_is_none():
    assert Distribution.of([]) is None and Distribution.of([0.002]) == Distribution(2.0, 2.0, 2.0, 2.0)


def test_goodput_limits_are_read_as_one_text_or_several():
    expected = dict(ttft=200.0, tpot=50.5)
    assert parse_goodput(["ttft:200 tpot:50.5"]) == parse_goodput(["ttft:200", "tpot:50.5"]) == expected
    assert parse_goodput([]) == {} and parse_goodput(["e2el:inf"]) == dict(e2el=math.inf)


@pytest.mark.parametrize("text", ["ttft", "ttft:", "ttft:x", "itl:5", ":5", "ttft:-1", "ttft:nan", "ttft:1 ttft:2", "ttft=3"])
def test_wrong_goodput_limits_are_refused(text):
    with pytest.raises(InvalidOptionError, match="--goodput"):
        parse_goodput([text])
