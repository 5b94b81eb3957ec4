"""Latency and throughput of served requests, as vLLM's `bench serve` defines them (vllm/benchmarks/serve.py, calculate_metrics).

For a request that starts at s and gets outputs at t_1 < ... < t_m with n tokens in total:

    TTFT = t_1 - s                    time to first token
    E2EL = t_m - s                    end-to-end latency
    TPOT = (E2EL - TTFT) / (n - 1)    time per output token; requests of one token have none
    ITL  = t_i - t_(i-1)              inter-token latency, one value per gap, over all requests together

Goodput is the rate of requests that meet every limit (Zhong et al., "DistServe", 2024, section 2); a request without TPOT meets every TPOT
limit. Percentiles interpolate linearly between neighbours, as numpy.percentile does. Failed requests count only in `failed`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from minllm.errors import InvalidOptionError

LIMITS = ("ttft", "tpot", "e2el")  # the metrics of one request that goodput may limit


@dataclass
class RequestTimes:
    """The times at which a request started and got its outputs, in seconds after the start of the run.

    A step can produce several tokens at once (speculative decoding); they are one output with one time, like a chunk of a stream in vLLM.
    """

    prompt_tokens: int
    start: float
    output_times: list[float] = field(default_factory=list)
    output_tokens: int = 0
    succeeded: bool = False

    @property
    def ttft(self) -> float:
        """Time to first token, in seconds."""
        return self.output_times[0] - self.start

    @property
    def e2el(self) -> float:
        """End-to-end latency, in seconds."""
        return self.output_times[-1] - self.start

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first, in seconds; None for a request of one token."""
        return (self.e2el - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else None

    def meets(self, limits: dict[str, float]) -> bool:
        """Whether the request meets all of `limits`, {metric: milliseconds}."""
        return all((getattr(self, name) or 0.0) <= 1e-3 * most for name, most in limits.items())


@dataclass(frozen=True)
class StepSample:
    """The engine after one step.

    num_preemptions counts from the start of the run; num_tokens is the output of this step.
    """

    time: float
    num_running: int
    num_waiting: int
    kv_cache_usage: float  # 0 to 1
    num_preemptions: int
    num_tokens: int


@dataclass(frozen=True)
class ServedRun:
    """The observations of the driver.

    prefix_cache_hits of prefix_cache_queries prompt tokens were found in the cache.
    """

    requests: list[RequestTimes]
    steps: list[StepSample]
    prefix_cache_hits: int = 0
    prefix_cache_queries: int = 0


def pooled(runs: Sequence[ServedRun]) -> ServedRun:
    """Runs of the same requests combined into one, as if each had begun at the end of the previous one."""
    requests, steps, start, preemptions = [], [], 0.0, 0
    for run in runs:
        requests += [
            replace(request, start=request.start + start, output_times=[time + start for time in request.output_times])
            for request in run.requests
        ]
        steps += [replace(step, time=step.time + start, num_preemptions=step.num_preemptions + preemptions) for step in run.steps]
        start = max([start, *(request.output_times[-1] for request in requests if request.succeeded)])
        preemptions = steps[-1].num_preemptions if steps else 0
    return ServedRun(requests, steps, sum(run.prefix_cache_hits for run in runs), sum(run.prefix_cache_queries for run in runs))


@dataclass(frozen=True)
class Distribution:
    """Mean and percentiles of one latency, in milliseconds."""

    mean: float
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Distribution | None":
        """The distribution of these values in seconds; None without values."""
        if not seconds:
            return None
        p50, p95, p99 = 1e3 * np.percentile(seconds, (50, 95, 99))
        return cls(1e3 * float(np.mean(seconds)), float(p50), float(p95), float(p99))


@dataclass(frozen=True)
class ServingMetrics:
    """The result of a run. Rates are per second of `duration`; a distribution is None if no request has a value.

    duration: seconds from the start of the run to the last token. request_goodput: None without limits.
    """

    completed: int
    failed: int
    duration: float
    total_input_tokens: int
    total_output_tokens: int
    request_throughput: float
    request_goodput: float | None
    output_throughput: float
    total_token_throughput: float
    ttft: Distribution | None
    tpot: Distribution | None
    itl: Distribution | None
    e2el: Distribution | None
    num_steps: int
    max_running: int
    max_waiting: int
    max_kv_cache_usage: float
    num_preemptions: int
    prefix_cache_hit_rate: float | None


def calculate_metrics(run: ServedRun, limits: dict[str, float] | None = None) -> ServingMetrics:
    """The metrics of a run. limits: {"ttft" | "tpot" | "e2el": milliseconds} for goodput."""
    done = [request for request in run.requests if request.succeeded]
    duration = max((request.output_times[-1] for request in done), default=0.0)
    inputs, outputs = sum(request.prompt_tokens for request in done), sum(request.output_tokens for request in done)

    def rate(count: int) -> float:
        return count / duration if duration else 0.0

    return ServingMetrics(
        completed=len(done),
        failed=len(run.requests) - len(done),
        duration=duration,
        total_input_tokens=inputs,
        total_output_tokens=outputs,
        request_throughput=rate(len(done)),
        request_goodput=rate(sum(request.meets(limits) for request in done)) if limits else None,
        output_throughput=rate(outputs),
        total_token_throughput=rate(inputs + outputs),
        ttft=Distribution.of([request.ttft for request in done]),
        tpot=Distribution.of([request.tpot for request in done if request.tpot is not None]),
        itl=Distribution.of(inter_token_latencies(done)),
        e2el=Distribution.of([request.e2el for request in done]),
        num_steps=len(run.steps),
        max_running=max((step.num_running for step in run.steps), default=0),
        max_waiting=max((step.num_waiting for step in run.steps), default=0),
        max_kv_cache_usage=max((step.kv_cache_usage for step in run.steps), default=0.0),
        num_preemptions=run.steps[-1].num_preemptions if run.steps else 0,
        prefix_cache_hit_rate=run.prefix_cache_hits / run.prefix_cache_queries if run.prefix_cache_queries else None,
    )


def inter_token_latencies(requests: Sequence[RequestTimes]) -> list[float]:
    """The gaps in seconds between successive outputs, over all requests."""
    return [later - earlier for request in requests for earlier, later in zip(request.output_times, request.output_times[1:])]


def parse_goodput(texts: Sequence[str]) -> dict[str, float]:
    """["ttft:200 tpot:50"] or ["ttft:200", "tpot:50"] as {"ttft": 200.0, "tpot": 50.0}, milliseconds.

    Raises InvalidOptionError.
    """
    limits: dict[str, float] = {}
    for pair in " ".join(texts).split():
        name, _, text = pair.partition(":")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if name not in LIMITS or name in limits or not value >= 0:
            raise InvalidOptionError(
                f"--goodput {pair} is not allowed: write METRIC:MILLISECONDS with each of {', '.join(LIMITS)} at most once, for example "
                "ttft:200 tpot:50."
            )
        limits[name] = value
    return limits
