"""The driver: adds requests to an engine when they are due, runs its steps, and records the times of tokens.

Engine and driver share one thread, so a request that arrives during a step is added after it. Its latency still counts from its arrival, as
a client would measure it. With max_concurrency a request waits if all slots are taken, and its latency counts from the time at which a slot
becomes free, as in vLLM's `bench serve`, where clients wait in the same way before they send.
"""

import random
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any, Protocol

from minllm.bench.serving.concurrency import Places
from minllm.bench.serving.metrics import RequestTimes, ServedRun, StepSample
from minllm.bench.serving.workload import BenchRequest, random_prompt
from minllm.engine.requests.sampling_params import SamplingParams
from minllm.engine.requests.sequence import Sequence

WARM_UP_TOKENS = 16  # output tokens of a warm-up request
COMPLETE = ("stop", "length")  # finish reasons of a completely served request


class Engine(Protocol):
    """The interface of LLMEngine that the driver uses."""

    def add_request(self, request_id: str, prompt: object, sampling_params: SamplingParams) -> None:
        """Queue a request."""

    def abort_request(self, request_id: str) -> None:
        """End a request early."""

    def advance(self) -> list[Sequence]:
        """Compute one step; returns the sequences that got a token or ended in it."""

    def has_unfinished_requests(self) -> bool:
        """Whether a request is waiting or running."""

    def set_scheduling_policy(self, name: str) -> None:
        """Use another scheduling policy from the next step on."""

    def stats(self) -> Any:
        """EngineStats: queue lengths, KV cache usage, counters."""


class Clock(Protocol):
    """A clock in seconds; tests use a virtual one."""

    def now(self) -> float:
        """Seconds since a fixed time."""

    def sleep(self, seconds: float) -> None:
        """Wait for this time."""


class WallClock:
    """The machine's clock."""

    now = staticmethod(time.perf_counter)
    sleep = staticmethod(time.sleep)


@dataclass
class Progress:
    """The state of a run for a live display: the newest sample, and the numbers of requests added and ended."""

    num_requests: int
    added: int = 0
    ended: int = 0
    output_tokens: int = 0
    sample: StepSample | None = None


def greedy(output_len: int) -> SamplingParams:
    """Parameters of a request that generates exactly `output_len` tokens."""
    return SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True, detokenize=False)


class Driver:
    """One run of `requests`, which are sorted by arrival. on_step is called after each step."""

    def __init__(
        self,
        engine: Engine,
        requests: Many[BenchRequest],
        clock: Clock,
        max_concurrency: int | None,
        on_step: Callable[[Progress], None] | None,
    ):
        self.engine, self.requests, self.clock, self.on_step = engine, requests, clock, on_step
        self.places = Places(max_concurrency, len(requests))
        self.times = [RequestTimes(0, 0.0) for _ in requests]
        self.due = deque(range(len(requests)))
        self.running: set[int] = set()
        self.steps: list[StepSample] = []
        self.progress = Progress(len(requests))
        self.start = clock.now()
        self.before = engine.stats()

    def run(self) -> ServedRun:
        """Serve all requests. On an interrupt the remaining requests are aborted."""
        try:
            while self.due or self.running:
                self._add_due()
                if not self.running:
                    self.clock.sleep(max(0.0, self.requests[self.due[0]].arrival - self._now()))
                    continue
                self._take(self.engine.advance())
                if self.running and not self.engine.has_unfinished_requests():
                    self._give_up()
        finally:
            for index in self.running:
                self.engine.abort_request(str(index))
        after = self.engine.stats()
        hits, queries = (getattr(after, name) - getattr(self.before, name) for name in ("prefix_cache_hits", "prefix_cache_queries"))
        return ServedRun(self.times, self.steps, hits, queries)

    def _now(self) -> float:
        return self.clock.now() - self.start

    def _add_due(self) -> None:
        """Add the requests that have arrived, as far as max_concurrency allows."""
        now = self._now()
        while self.due and self.places.free and self.requests[self.due[0]].arrival <= now:
            index = self.due.popleft()
            request = self.requests[index]
            self.engine.add_request(str(index), request.prompt, greedy(request.output_len))
            self.times[index].start = self.places.take(request.arrival)
            self.running.add(index)
            self.progress.added += 1

    def _give_up(self) -> None:
        """Count requests that the engine ended without output as failed, so that they do not stall the run."""
        for _ in self.running:
            self.places.give_back(self._now())
            self.progress.ended += 1
        self.running.clear()

    def _take(self, moved: list[Sequence]) -> None:
        """Record the tokens of a step and the engine's state after it."""
        now, tokens = self._now(), 0
        for sequence in moved:
            index = int(sequence.request_id)
            times, new = self.times[index], len(sequence.output_token_ids) - self.times[index].output_tokens
            if new > 0:
                times.output_times.append(now)
                times.output_tokens += new
                tokens += new
            if sequence.is_finished:
                times.prompt_tokens = len(sequence.prompt_token_ids)
                times.succeeded = bool(times.output_times) and sequence.finish_reason in COMPLETE
                self.running.discard(index)
                self.places.give_back(now)
                self.progress.ended += 1
        stats = self.engine.stats()
        preemptions = stats.num_preemptions - self.before.num_preemptions
        sample = StepSample(now, stats.num_running, stats.num_waiting, stats.kv_cache_usage, preemptions, tokens)
        self.steps.append(sample)
        self.progress.output_tokens += tokens
        self.progress.sample = sample
        if self.on_step is not None:
            self.on_step(self.progress)


def serve(
    engine: Engine,
    requests: Many[BenchRequest],
    *,
    clock: Clock | None = None,
    max_concurrency: int | None = None,
    on_step: Callable[[Progress], None] | None = None,
) -> ServedRun:
    """Serve `requests`, sorted by arrival, at most max_concurrency of them at a time."""
    return Driver(engine, requests, clock or WallClock(), max_concurrency, on_step).run()


def warm_up(engine: Engine, requests: Many[BenchRequest], num_warmups: int, vocab_size: int, clock: Clock | None = None) -> None:
    """Serve num_warmups unmeasured requests all at once: prompts with the lengths of the first ones, a few tokens of output.

    Their token ids differ from those of measured prompts, which therefore find nothing in a prefix cache.
    """
    generator = random.Random("warm-up")
    lengths = [len(request.prompt) for request in requests[:num_warmups] if isinstance(request.prompt, list)] or [WARM_UP_TOKENS]
    prompts = [random_prompt(generator, lengths[i % len(lengths)], (0, vocab_size - 1)) for i in range(num_warmups)]
    shortest = min(request.output_len for request in requests)
    serve(engine, [BenchRequest(prompt, min(shortest, WARM_UP_TOKENS)) for prompt in prompts], clock=clock)
