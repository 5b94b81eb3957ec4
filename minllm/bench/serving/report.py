"""The result of a serving benchmark: tables for a terminal, rows for docs/results, and one line of JSON with vLLM's keys."""

import json
from dataclasses import dataclass

from rich.table import Table

from minllm.bench.record import Row
from minllm.bench.serving.metrics import Distribution, ServedRun, ServingMetrics
from minllm.bench.serving.profile.report import rows as profile_rows
from minllm.bench.serving.profile.steps import TracedStep

LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL"}
COLUMNS = "{:<22}{:<16}{:>14}{:>12}{:>11}{:>11}{:>10}{:>10}{:>10}{:>11}"
HEADINGS = ("", "rate", "completed", "tokens/s", "TTFT p50", "TTFT p99", "TPOT p50", "ITL p99", "goodput", "preempted")
STATISTICS = ("mean", "p50", "p95", "p99")
# the names that these metrics have in vLLM's result file too
SAME_NAMES = (
    "duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput", "request_goodput",
    "output_throughput", "total_token_throughput",
)  # fmt: skip
RECORDED = (
    "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms", "p99_itl_ms", "p99_e2el_ms", "request_throughput",
    "request_goodput", "num_preemptions",
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    """One measured run. case: model and workload; variant: the compared option, such as a policy.

    rate: offered requests per second. A rate of None stands for the arrivals of a trace.
    """

    case: str
    variant: str
    rate: float | None
    metrics: ServingMetrics
    run: ServedRun
    peer: str | None = None
    peer_metrics: ServingMetrics | None = None
    traced: list[TracedStep] | None = None  # the steps of another run, under the profiler

    @property
    def name(self) -> str:
        """Case and rate: the case of the rows of a record."""
        return f"{self.case}, {rate_name(self.rate)}"


def rate_name(rate: float | None) -> str:
    """ "4 requests/s", "all at once" for inf, "as recorded" for None."""
    if rate is None:
        return "as recorded"
    return "all at once" if rate == float("inf") else f"{rate:.4g} requests/s"


def summary_line(name: str, rate: float | None, metrics: ServingMetrics) -> str:
    """One run as a line below HEADINGS: throughput, latencies in ms, goodput, preemptions."""
    latencies = [_statistic(metrics, *which) for which in (("ttft", "p50"), ("ttft", "p99"), ("tpot", "p50"), ("itl", "p99"))]
    return COLUMNS.format(
        name,
        rate_name(rate),
        f"{metrics.completed} of {metrics.completed + metrics.failed}",
        f"{metrics.output_throughput:,.0f}",
        *("" if value is None else f"{value:,.2f}" for value in latencies),
        "" if metrics.request_goodput is None else f"{metrics.request_goodput:.2f}/s",
        metrics.num_preemptions,
    )


def detail_table(result: Result) -> Table:
    """All figures of one run, one per line."""
    metrics = result.metrics
    table = Table(show_header=False, title=f"{result.name}, {result.variant}", title_justify="left")
    table.add_row("requests", f"{metrics.completed} completed, {metrics.failed} failed, in {metrics.duration:.2f} s")
    table.add_row("tokens", f"{metrics.total_input_tokens:,} of prompts, {metrics.total_output_tokens:,} generated")
    goodput = "" if metrics.request_goodput is None else f", {metrics.request_goodput:.2f} within the limits (goodput)"
    table.add_row("request throughput", f"{metrics.request_throughput:.2f} requests/s{goodput}")
    table.add_row("output throughput", f"{metrics.output_throughput:,.1f} tokens/s")
    table.add_row("total throughput", f"{metrics.total_token_throughput:,.1f} tokens/s, prompts included")
    for name, label in LATENCIES.items():
        latency = getattr(metrics, name)
        if latency is not None:
            table.add_row(label, ", ".join(f"{statistic} {getattr(latency, statistic):,.2f}" for statistic in STATISTICS) + " ms")
    table.add_row("batch", f"{metrics.num_steps} steps, at most {metrics.max_running} running and {metrics.max_waiting} waiting")
    table.add_row("KV cache", f"at most {metrics.max_kv_cache_usage:.1%} used, {metrics.num_preemptions} preemptions")
    if metrics.prefix_cache_hit_rate is not None:
        table.add_row("prefix cache", f"{metrics.prefix_cache_hit_rate:.1%} of prompt tokens found")
    return table


def rows(result: Result) -> list[Row]:
    """The run as a row of a record, the output throughput, with its latencies by the names of `json_line`; then the rows of its trace."""
    metrics, peer = result.metrics, result.peer_metrics
    rate = metrics.output_throughput
    compared = {}
    if peer is not None:
        of_peer = peer.output_throughput
        compared = dict(peer=result.peer, peer_value=_rounded(of_peer), ratio=round(rate / of_peer, 3) if of_peer else None)
    found = {name: value for name, value in vllm_values(metrics).items() if name in RECORDED and value is not None}
    row = Row("serving throughput", result.name, result.variant, _rounded(rate), "tokens/s", **compared, metrics=found)
    return [row, *profile_rows(result.traced or [], result.name, result.variant)]


def _statistic(metrics: ServingMetrics, latency: str, statistic: str) -> float | None:
    distribution: Distribution | None = getattr(metrics, latency)
    return getattr(distribution, statistic) if distribution else None


def _rounded(value: float) -> float:
    """The value with five significant figures."""
    return float(f"{value:.5g}")


def vllm_values(metrics: ServingMetrics) -> dict[str, float | None]:
    """The metrics by the names of vLLM's result file; latencies without a value are left out."""
    values: dict[str, float | None] = {name: getattr(metrics, name) for name in SAME_NAMES}
    for name in LATENCIES:
        latency = getattr(metrics, name)
        for statistic in STATISTICS if latency else ():
            values[f"{'median' if statistic == 'p50' else statistic}_{name}_ms"] = getattr(latency, statistic)
    values |= dict(num_preemptions=metrics.num_preemptions, prefix_cache_hit_rate=metrics.prefix_cache_hit_rate)
    return {name: _rounded(value) if isinstance(value, float) else value for name, value in values.items()}


def json_line(result: Result) -> str:
    """The run on one line, with the keys of vLLM's result file."""
    rate = "inf" if result.rate == float("inf") else result.rate
    values = dict(case=result.case, variant=result.variant, request_rate=rate, **vllm_values(result.metrics))
    return json.dumps(values, ensure_ascii=False)
