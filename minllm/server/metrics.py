"""GET /metrics: vLLM's names, so that dashboards made for it show this server. All times are by one process's monotonic clock."""

import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from minllm.server.wire import Update

SHORT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0)
BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
LONG = (0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0)
LAG = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
TOKENS = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))
COUNTS = (1, 2, 5, 10, 20)
GAUGES = {
    "num_requests_running": ("Sequences that the engine computes.", "num_running"),
    "num_requests_waiting": ("Sequences that wait for the engine.", "num_waiting"),
    "kv_cache_usage_perc": ("Share of the KV cache that running sequences hold, 0 to 1.", "kv_cache_usage"),
}
COUNTERS = {
    "num_preemptions": ("Sequences that were preempted.", "num_preemptions"),
    "prefix_cache_queries": ("Prompt tokens looked up in the prefix cache.", "prefix_cache_queries"),
    "prefix_cache_hits": ("Prompt tokens found in the prefix cache.", "prefix_cache_hits"),
    "spec_decode_num_drafts": ("Verifications of drafts.", "spec_decode_num_drafts"),
    "spec_decode_num_draft_tokens": ("Drafts that were verified.", "spec_decode_num_draft_tokens"),
    "spec_decode_num_accepted_tokens": ("Drafts that were accepted.", "spec_decode_num_accepted_tokens"),
}


class Metrics:
    """The metrics of one server."""

    def __init__(self, model_name: str, max_model_len: int):
        self.registry, self._labels = CollectorRegistry(), {"model_name": model_name}
        self._engine_counts: dict[str, float] = {}
        self.gauges = {name: self._made(Gauge, name, text) for name, (text, _) in GAUGES.items()}
        self.counters = {name: self._made(Counter, name, text) for name, (text, _) in COUNTERS.items()}
        self.prompt_tokens = self._made(Counter, "prompt_tokens", "Prompt tokens of requests.")
        self.step_tokens = self._made(Histogram, "iteration_tokens_total", "Tokens of prompts and of texts per step of the engine.", TOKENS)
        self.generation_tokens = self._made(Counter, "generation_tokens", "Tokens generated.")
        self.success = Counter(
            "vllm:request_success", "Completions that ended, by reason.", ["model_name", "finished_reason"], registry=self.registry
        )
        self.first_token = self._made(Histogram, "time_to_first_token_seconds", "From a request's arrival to its first token.", SHORT)
        self.between_tokens = self._made(Histogram, "inter_token_latency_seconds", "Between the tokens of a completion.", BETWEEN)
        self.whole = self._made(Histogram, "e2e_request_latency_seconds", "From a request's arrival to its last token.", LONG)
        self.queue = self._made(Histogram, "request_queue_time_seconds", "In the engine's queue.", LONG)
        self.prefill = self._made(Histogram, "request_prefill_time_seconds", "From the queue to a request's first token.", LONG)
        self.decode = self._made(Histogram, "request_decode_time_seconds", "From a request's first token to its last.", LONG)
        self.inference = self._made(Histogram, "request_inference_time_seconds", "From the queue to a request's last token.", LONG)
        self.request_prompt = self._made(Histogram, "request_prompt_tokens", "Prompt tokens per request.", TOKENS)
        self.request_generation = self._made(Histogram, "request_generation_tokens", "Generated tokens per request.", TOKENS)
        self.request_max_tokens = self._made(Histogram, "request_params_max_tokens", "max_tokens of requests.", TOKENS)
        self.request_n = self._made(Histogram, "request_params_n", "n of requests.", COUNTS)
        self.loop_lag = self._made(Histogram, "event_loop_lag_seconds", "How late the event loop ran a timer.", LAG, "minllm:")
        info = Gauge("vllm:cache_config_info", "The engine's cache.", ["model_name", "max_model_len"], registry=self.registry)
        info.labels(model_name=model_name, max_model_len=str(max_model_len)).set(1)

    def _made(self, kind: type, name: str, text: str, buckets: tuple = (), prefix: str = "vllm:") -> Any:
        more = {"buckets": buckets} if buckets else {}
        return kind(prefix + name, text, ["model_name"], registry=self.registry, **more).labels(**self._labels)

    def finished(self, reason: str) -> None:
        """Count a completion that has ended."""
        self.success.labels(**self._labels, finished_reason=reason).inc()

    def take_engine(self, stats: dict[str, float]) -> None:
        """Take the engine's numbers. Its counts begin again at 0 with a new process; those here only grow."""
        for name, (_, field) in GAUGES.items():
            self.gauges[name].set(stats[field])
        for name, (_, field) in COUNTERS.items():
            before = self._engine_counts.get(field, 0)
            self.counters[name].inc(stats[field] - before if stats[field] >= before else stats[field])
            self._engine_counts[field] = stats[field]

    def text(self) -> bytes:
        """The metrics in Prometheus' format."""
        return generate_latest(self.registry)


class RequestTimes:
    """Observes the times and tokens of one request."""

    def __init__(self, metrics: Metrics, n: int, max_tokens: int | None):
        self.metrics, self.arrived = metrics, time.perf_counter()
        self._has_token = False
        self._latest: dict[int, float] = {}
        self._generated = self._prompt = 0
        metrics.request_n.observe(n)
        if max_tokens is not None:
            metrics.request_max_tokens.observe(max_tokens)

    def observe(self, update: Update, received: float) -> None:
        """Take an update that came at `received`, by time.perf_counter()."""
        metrics = self.metrics
        if update.head is not None:
            self._prompt = update.head.num_prompt_tokens
            metrics.prompt_tokens.inc(self._prompt)
        for delta in update.deltas:
            count = len(delta.token_ids)
            if count:
                self._take_tokens(delta.index, count, received)
            if delta.finish_reason is not None:
                metrics.finished(delta.finish_reason)
        if update.finished and update.failure is None:
            metrics.whole.observe(received - self.arrived)
            metrics.request_prompt.observe(self._prompt)
            metrics.request_generation.observe(self._generated)
        if update.timing is not None:
            queue, prefill, decode = update.timing
            metrics.queue.observe(queue)
            metrics.prefill.observe(prefill)
            metrics.decode.observe(decode)
            metrics.inference.observe(prefill + decode)

    def _take_tokens(self, index: int, count: int, received: float) -> None:
        self._generated += count
        self.metrics.generation_tokens.inc(count)
        if not self._has_token:
            self._has_token = True
            self.metrics.first_token.observe(received - self.arrived)
        before = self._latest.get(index)
        if before is not None:
            for _ in range(count):
                self.metrics.between_tokens.observe((received - before) / count)
        self._latest[index] = received
