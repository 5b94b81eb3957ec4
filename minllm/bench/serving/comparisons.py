"""Measures one workload on several configurations of the engine: scheduling policies, preemption modes, batch sizes."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from minllm.bench.serving.arrivals import arriving
from minllm.bench.serving.live_table import live_table
from minllm.bench.serving.metrics import ServedRun, calculate_metrics, pooled
from minllm.bench.serving.plots import file_prefix
from minllm.bench.serving.profile.run import SUFFIX, profiled
from minllm.bench.serving.report import Result, rate_name
from minllm.bench.serving.run import Clock, Engine, serve, warm_up
from minllm.bench.serving.workload import BenchRequest, within_vocabulary

POLICIES = ("static", "in_flight", "split_fuse", "prefill_first")
PREEMPTIONS = ("recompute", "swap", "drop")
CONCURRENCY = (1, 8, 64, 256)
CLIENTS = "max_concurrency"  # with a number, the variant of a run with that many clients
LOADS = (0.5, 0.8, 1.1)  # offered rates relative to capacity: light, heavy, overloaded

OpenEngine = Callable[[dict[str, Any]], AbstractContextManager[tuple[Engine, int]]]


@dataclass(frozen=True)
class ServingBench:
    """A workload and how to measure it.

    open_engine: a context (options of LLM()) -> (engine, vocabulary size). case: model and workload in words. limits: those of goodput.
    A rate of None keeps the arrivals of the requests. profile: a folder for the trace of another run after each measured one, under
    torch's profiler.
    """

    open_engine: OpenEngine
    case: str
    requests: list[BenchRequest]
    seed: int = 0
    burstiness: float = 1.0
    max_concurrency: int | None = None
    num_warmups: int = 16
    limits: dict[str, float] | None = None
    clock: Clock | None = None
    profile: Path | None = None

    def requests_at(self, rate: float | None, vocab_size: int, shift: int = 0) -> list[BenchRequest]:
        """The requests at this rate.

        shift: changes all token ids, so that a prefix cache has nothing of earlier runs.
        """
        requests = within_vocabulary(self.requests, vocab_size, shift)
        return requests if rate is None else arriving(requests, rate, self.burstiness, self.seed)

    @contextmanager
    def warm_engine(self, options: dict[str, Any]) -> Iterator[tuple[Engine, int]]:
        """An engine with these options after a warm-up, and the size of its vocabulary."""
        with self.open_engine(options) as (engine, vocab_size):
            warm_up(engine, self.requests, self.num_warmups, vocab_size, self.clock)
            yield engine, vocab_size

    def serve(self, engine: Engine, variant: str, rate: float | None, vocab_size: int, shift: int) -> ServedRun:
        """One run, with a live display."""
        with live_table(f"{variant}, {rate_name(rate)}") as on_step:
            requests = self.requests_at(rate, vocab_size, shift)
            return serve(engine, requests, clock=self.clock, max_concurrency=self.max_concurrency, on_step=on_step)

    def result(self, variant: str, rate: float | None, run: ServedRun) -> Result:
        """The Result of a run, with its metrics."""
        return Result(self.case, variant, rate, calculate_metrics(run, self.limits), run)

    def measure(self, variant: str, rates: Sequence[float | None], **options: Any) -> Iterator[Result]:
        """One run per rate on one engine, after a warm-up."""
        with self.warm_engine(options) as (engine, vocab_size):
            for shift, rate in enumerate(rates):
                result = self.result(variant, rate, self.serve(engine, variant, rate, vocab_size, shift))
                if self.profile is not None:
                    requests = self.requests_at(rate, vocab_size, len(rates) + shift)
                    trace = self.profile / f"{file_prefix(result)}{SUFFIX}"
                    result = replace(result, traced=profiled(engine, requests, self.max_concurrency, trace))
                yield result


def compare_policies(bench: ServingBench, rates: Sequence[float | None] = (), policies: Sequence[str] = POLICIES) -> Iterator[Result]:
    """Measure each policy twice on the same arrivals at each rate, on one engine.

    The second time is in reverse order, so that no policy profits from its position. Without rates: at LOADS times the request throughput
    that is measured with all requests at once.
    """
    with bench.warm_engine({}) as (engine, vocab_size):
        if not rates:
            run = bench.serve(engine, "capacity", math.inf, vocab_size, 0)
            capacity = bench.result("capacity", math.inf, run).metrics.request_throughput
            rates = [float(f"{load * capacity:.3g}") for load in LOADS]
        runs: dict[tuple[str, float | None], list[ServedRun]] = defaultdict(list)
        for shift, (policy, rate) in enumerate([*product(policies, rates), *product(reversed(policies), rates)], start=1):
            engine.set_scheduling_policy(policy)
            found = runs[policy, rate]
            found.append(bench.serve(engine, policy, rate, vocab_size, shift))
            if len(found) == 2:
                yield bench.result(policy, rate, pooled(found))


def compare_preemption(bench: ServingBench, rates: Sequence[float | None]) -> Iterator[Result]:
    """Measure each preemption mode; the engine's options must set a cache that is too small for the batch."""
    for mode in PREEMPTIONS:
        yield from bench.measure(mode, rates, preemption=mode)


def sweep_concurrency(bench: ServingBench, rates: Sequence[float | None], clients: Sequence[int] = CONCURRENCY) -> Iterator[Result]:
    """Measure numbers of clients, each of which sends its requests one after another, on one engine.

    Every client sends as many: the most of them share all requests, fewer leave the rest.
    """
    each = max(1, len(bench.requests) // max(clients))
    with bench.warm_engine({}) as (engine, vocab_size):
        for shift, (count, rate) in enumerate(product(clients, rates)):
            few = replace(bench, requests=bench.requests[: each * count], max_concurrency=count)
            variant = f"{CLIENTS} {count}"
            yield few.result(variant, rate, few.serve(engine, variant, rate, vocab_size, shift))


class Comparison(NamedTuple):
    """A comparison: the option of LLM() that it varies ("" if none), the values, and the function."""

    option: str
    values: Sequence[Any]
    run: Callable[[ServingBench, Sequence[float | None]], Iterator[Result]]


COMPARISONS = {
    "policies": Comparison("scheduling_policy", POLICIES, compare_policies),
    "preemption": Comparison("preemption", PREEMPTIONS, compare_preemption),
    "concurrency": Comparison("", (), sweep_concurrency),
}
