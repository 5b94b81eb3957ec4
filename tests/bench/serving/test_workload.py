"""Requests of the serving benchmark: their distributions, that a seed is a workload, and files whose mistakes are named."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minllm.bench.serving.arrivals import arrival_times, arriving
from minllm.bench.serving.trace import read_trace
from minllm.bench.serving.workload import REQUEST_LISTS, BenchRequest, Lengths, Workload, fixed, longest, named_list, within_vocabulary
from minllm.errors import InvalidOptionError


def test_nano_vllms_list_is_its_own():
    """The README of nano-vllm says that its benchmark generates 133,966 tokens."""
    requests = REQUEST_LISTS["nano-vllm"].requests(seed=0)
    assert sum(request.output_len for request in requests) == 133_966
    assert sum(len(request.prompt) for request in requests) == 142_827


def test_mixed_prompts_have_three_lengths():
    requests = REQUEST_LISTS["mixed-prompts"].requests()
    assert len(requests) == 256 and {request.output_len for request in requests} == {128}
    assert {len(request.prompt) for request in requests} == {64, 256, 512}
    assert all(10 <= token_id < 1000 for request in requests for token_id in request.prompt)


@pytest.mark.parametrize("name", [name for name in REQUEST_LISTS if name.startswith("tensorrt")])
def test_tensorrt_llms_grid_is_in_the_names(name):
    prompt, output = map(int, name.split("-")[2:])
    request = named_list(name, 2).requests()[1]
    assert (len(request.prompt), request.output_len) == (prompt, output)


def test_a_seed_is_a_workload():
    workload = Workload(20, Lengths((1, 50), is_range=True), Lengths((3, 5, 9)))
    assert workload.requests(3) == workload.requests(3) != workload.requests(4)
    assert arrival_times(20, 2.0, seed=3) == arrival_times(20, 2.0, seed=3) != arrival_times(20, 2.0, seed=4)


def test_lengths_follow_their_distribution():
    requests = Workload(4000, Lengths.parse("100:1024", "--input-len"), Lengths.parse("64,256,512", "--output-len")).requests()
    prompts, outputs = [len(request.prompt) for request in requests], [request.output_len for request in requests]
    assert min(prompts) >= 100 and max(prompts) <= 1024 and np.mean(prompts) == pytest.approx(562, rel=0.03)
    assert np.std(prompts) == pytest.approx(925 / math.sqrt(12), rel=0.03)
    assert [np.mean(np.equal(outputs, length)) for length in (64, 256, 512)] == pytest.approx([1 / 3] * 3, abs=0.03)
    assert Lengths.parse("77", "--input-len") == fixed(77)


@pytest.mark.parametrize("text", ["", "0", "-3", "x", "5:", "9:3", "1:2:3", "3,", "1.5", "10:0", "64,0", "99999999", "inf"])
def test_lengths_that_are_none_are_refused(text):
    with pytest.raises(InvalidOptionError, match="--input-len"):
        Lengths.parse(text, "--input-len")


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_follow_a_gamma_distribution(burstiness):
    """Mean 1 / rate; the squared coefficient of variation of a gamma distribution is 1 / shape."""
    gaps = np.diff([0.0, *arrival_times(40_000, rate=8.0, burstiness=burstiness)])
    assert np.mean(gaps) == pytest.approx(1 / 8)
    assert np.var(gaps) / np.mean(gaps) ** 2 == pytest.approx(1 / burstiness, rel=0.06)


def test_poisson_arrivals_are_exponential():
    gaps = np.sort(np.diff([0.0, *arrival_times(20_000, rate=1.0)]))
    expected = 1 - np.exp(-gaps)  # the cumulative distribution of an exponential gap
    assert np.max(np.abs(expected - np.arange(1, len(gaps) + 1) / len(gaps))) < 0.02  # the Kolmogorov-Smirnov statistic


@given(
    count=st.integers(1, 60),
    rate=st.one_of(st.just(math.inf), st.floats(1e-3, 1e6)),
    burstiness=st.one_of(st.just(math.inf), st.floats(1e-12, 1e6)),
    seed=st.integers(),
)
def test_arrivals_ascend_and_offer_the_rate(count, rate, burstiness, seed):
    times = arrival_times(count, rate, burstiness, seed)
    assert len(times) == count and times == sorted(times) and all(math.isfinite(time) and time >= 0 for time in times)
    if any(times):
        assert times[-1] == pytest.approx(count / rate)


def test_another_rate_is_the_same_trace_faster():
    slow, fast = arrival_times(100, 2.0, 0.5), arrival_times(100, 8.0, 0.5)
    assert slow == pytest.approx([4 * time for time in fast])
    assert arrival_times(3, math.inf) == [0.0] * 3 and arrival_times(4, 2.0, math.inf) == pytest.approx([0.5, 1.0, 1.5, 2.0])


@pytest.mark.parametrize("rate, burstiness", [(0, 1), (-1, 1), (math.nan, 1), (1, 0), (1, -2), (1, math.nan)])
def test_rates_that_are_none_are_refused(rate, burstiness):
    with pytest.raises(InvalidOptionError, match="--request-rate" if burstiness == 1 else "--burstiness"):
        arriving([BenchRequest([1], 1)], rate, burstiness)


def test_token_ids_lie_in_the_vocabulary():
    requests = [BenchRequest([0, 9, 10, 25], 3), BenchRequest("text", 4)]
    assert within_vocabulary(requests, 10) == [BenchRequest([0, 9, 0, 5], 3), BenchRequest("text", 4)]
    assert within_vocabulary(requests, 10, shift=1)[0].prompt == [1, 0, 1, 6]
    assert longest(requests[:1]) == 7 and longest(requests) is None


def written(tmp_path, *lines):
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return path


def test_a_trace_is_read_in_order_of_arrival(tmp_path):
    first = dict(prompt_tokens=5, output_tokens=2, arrival=3.5, user="a")
    second = dict(prompt="a\u2028b", output_tokens=4, arrival=1)
    requests, has_arrivals = read_trace(written(tmp_path, first, "", json.dumps(second, ensure_ascii=False)))
    assert has_arrivals and [(request.arrival, request.output_len) for request in requests] == [(1.0, 4), (3.5, 2)]
    assert requests[0].prompt == "a\u2028b" and len(requests[1].prompt) == 5


def test_a_trace_without_arrivals_leaves_them_to_the_rate(tmp_path):
    path = written(tmp_path, *[dict(prompt_tokens=5, output_tokens=2)] * 4)
    requests, has_arrivals = read_trace(path, seed=1, num_prompts=3)
    assert not has_arrivals and len(requests) == 3 and requests == read_trace(path, seed=1)[0][:3]
    assert requests[0].prompt != read_trace(path, seed=2)[0][0].prompt


GOOD = dict(prompt_tokens=5, output_tokens=2)
WRONG = {
    "{": "not JSON",
    "[1]": "not an object",
    json.dumps(dict(prompt_tokens=5)): "output_tokens=null",
    json.dumps(GOOD | dict(output_tokens=0)): "output_tokens=0",
    json.dumps(GOOD | dict(output_tokens=True)): "output_tokens=true",
    json.dumps(GOOD | dict(prompt_tokens=1e3)): "prompt_tokens=1000.0",
    json.dumps(GOOD | dict(prompt_tokens=10**12)): "prompt_tokens=1000000000000",
    json.dumps(GOOD | dict(prompt="both")): "either prompt",
    json.dumps(dict(output_tokens=2)): "either prompt",
    json.dumps(dict(prompt="", output_tokens=2)): "not empty",
    json.dumps(dict(prompt=[1, 2], output_tokens=2)): "prompt=",
    json.dumps(GOOD | dict(arrival=-1)): "arrival=-1",
    json.dumps(GOOD | dict(arrival="1")): 'arrival="1"',
    json.dumps(GOOD | dict(arrival=math.nan)): "arrival=NaN",
    json.dumps(GOOD | dict(arrival=10**400)): "arrival=1",
    json.dumps(GOOD | dict(arrival=1)): "arrival is given here and missing",
}


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_line_is_named(tmp_path, line):
    with pytest.raises(InvalidOptionError) as found:
        read_trace(written(tmp_path, GOOD, "", line))
    assert "trace.jsonl, line 3" in str(found.value) and WRONG[line] in str(found.value)


def test_a_missing_arrival_is_named(tmp_path):
    with pytest.raises(InvalidOptionError, match="line 2: arrival is missing here"):
        read_trace(written(tmp_path, GOOD | dict(arrival=0), GOOD))


@pytest.mark.parametrize("contents, words", [(b"", "no requests"), (b"\n \n", "no requests"), (b"\xff\xfe", "not UTF-8")])
def test_a_file_without_requests_is_refused(tmp_path, contents, words):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(contents)
    with pytest.raises(InvalidOptionError, match=words):
        read_trace(path)


def test_an_unknown_list_names_those_there_are():
    with pytest.raises(InvalidOptionError, match="mixed-prompts, nano-vllm"):
        named_list("sharegpt")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InvalidOptionError, match=f"--dataset-path {tmp_path} cannot be read: Is a directory"):
        read_trace(tmp_path)
    with pytest.raises(InvalidOptionError, match="none cannot be read: No such file or directory"):
        read_trace(tmp_path / "none")
