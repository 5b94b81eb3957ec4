"""The warm-up runs requests that meet a first request's kernels, and reports what is loaded."""

from dataclasses import replace

import pytest

from minllm.cache.policy import PrefixHits
from minllm.cache.virtual.length_estimate import LengthEstimate
from minllm.cache.virtual.slots import MappingCounts
from minllm.engine import llm
from minllm.engine.build.engine import load_engine
from minllm.engine.requests.sampling_params import SamplingParams
from minllm.engine.warm_up import warm_up
from minllm.kernels.sampling.parameters import kind_of
from minllm.kernels.sampling.tensors import SamplingKind
from minllm.runtime import kernel
from tests.engine.models import model_directory


def record(requests, kernels_each):
    def generate(prompts, params):
        requests.append((len(prompts[0]), params.temperature, params.max_tokens))
        for number in range(kernels_each):
            for listener in kernel.compilation_listeners:
                listener(f"kernel {number}")

    return generate


class GraphRecorder:
    """A runner that notes for which ways to sample graphs are wanted."""

    def __init__(self):
        self.kinds = []

    def capture_graphs(self, kinds, progress=None):
        self.kinds.append(kinds)


def test_short_and_long_prompts_sampled_and_greedy():
    requests, reports, runner = [], [], GraphRecorder()
    warm_up(record(requests, 10), runner, SamplingParams(temperature=0.7), 2048, lambda *report: reports.append(report))
    assert requests == [(16, 0.7, 3), (16, 0.0, 3), (512, 0.7, 3), (512, 0.0, 3)]
    assert runner.kinds == [{SamplingKind.GREEDY, kind_of(SamplingParams(temperature=0.7))}]
    assert reports[0] == ("Loading kernels", 1, 30) and reports[-1] == ("Loading kernels", 40, 40)
    assert all(done < total for _, done, total in reports[:-1]) and not kernel.compilation_listeners


@pytest.mark.parametrize("limit, lengths", [(6, {3}), (100, {16, 97}), (3, {1})])
def test_prompts_fit_a_short_model(limit, lengths):
    requests = []
    warm_up(record(requests, 0), GraphRecorder(), SamplingParams(), limit)
    assert {length for length, *_ in requests} == lengths


def test_a_failure_leaves_no_listener_behind():
    def fail(*_):
        raise MemoryError

    with pytest.raises(MemoryError):
        warm_up(fail, GraphRecorder(), SamplingParams(), 100)
    assert not kernel.compilation_listeners


@pytest.mark.parametrize("options", [dict(enable_prefix_caching=True), dict(kv_cache_policy="virtual")], ids=["prefixes", "virtual"])
def test_it_leaves_no_trace_in_the_cache(monkeypatch, options):
    monkeypatch.setattr(llm, "load_engine", lambda *given: replace(load_engine(*given), device="cuda"))
    with llm.LLM(model_directory("small"), device="cpu", max_model_len=64, **options) as warm:
        policy = warm.engine.cache_policy
        assert policy.prefix_hits == PrefixHits() and policy.usage().allocated == 0
        if "kv_cache_policy" in options:
            assert policy.estimate == LengthEstimate() and policy.counts == MappingCounts()
        else:
            assert policy.usage().retained == 0
