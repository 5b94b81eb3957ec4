"""transformers as a peer, on a CPU: it serves the same requests, and its times follow the same definitions."""

import math

import pytest

from minllm.bench.serving.comparisons import ServingBench
from minllm.bench.serving.metrics import calculate_metrics
from minllm.bench.serving.workload import BenchRequest, Lengths, Workload


@pytest.fixture
def peer(monkeypatch):
    """The module. By default transformers fills the memory of the machine with its cache and attention mask, which takes half a minute.

    It is imported here, because the import takes seconds, which every test process would spend while it collects.
    """
    pytest.importorskip("torch", reason="pip install 'minllm[bench]'")
    pytest.importorskip("transformers", minversion="5", reason="pip install 'minllm[bench]'")
    from transformers.generation.continuous_batching import continuous_api

    from minllm.bench.serving import transformers_peer

    class SmallBatches(continuous_api.ContinuousBatchingConfig):
        def __init__(self):
            super().__init__(max_batch_tokens=256, num_blocks=64)

    monkeypatch.setattr(continuous_api, "ContinuousBatchingConfig", SmallBatches)
    return transformers_peer


def test_transformers_serves_the_same_requests(peer):
    workload = Workload(5, Lengths((3, 12), is_range=True), Lengths((2, 5), is_range=True))
    bench = ServingBench(None, "bundled", [*workload.requests(), BenchRequest("def f(x):", 3)])
    with peer.opened("bundled", "float32", "cpu", 64) as engine:
        assert engine.vocab_size == 4096
        peer.warm_up(engine, bench.requests_at(math.inf, engine.vocab_size)[:2])
        for rate, max_concurrency in ((math.inf, None), (50.0, None), (math.inf, 1)):
            requests = bench.requests_at(rate, engine.vocab_size)
            run = peer.serve(engine, requests, max_concurrency)
            found = calculate_metrics(run)
            assert found.completed == 6 and found.failed == 0
            for request, times in zip(requests, run.requests, strict=True):
                assert times.output_tokens == len(times.output_times) == request.output_len
                assert times.start >= request.arrival and times.ttft > 0 and times.output_times == sorted(times.output_times)
    ends = [times.output_times[-1] for times in run.requests]
    assert [times.start for times in run.requests] == [0.0, *ends[:-1]]  # one place: each starts when its predecessor has ended
