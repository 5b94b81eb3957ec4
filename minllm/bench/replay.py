"""A traffic replayed on a cache policy: how many sequences it lets run together, and how much of its memory holds tokens.

The replay is an engine without a model. Every step admits waiting requests in the order of their arrival as long as the policy has room
for their prompts, then gives each running sequence a token; a sequence that ends leaves at once, and others enter (in-flight batching, Yu
et al., "Orca", 2022). Nothing is promised beyond the prompt. When a running sequence finds no room for its next token, the one that was
admitted last is preempted: its memory is taken, and it waits first in line to be computed again (Kwon et al. 2023, section 4.5). The
result depends on nothing but the traffic, the policy and the length of a step.
"""

from collections import deque
from dataclasses import dataclass, field

from minllm.bench.traffic import TrafficRequest
from minllm.cache.policy import CachePolicy, CacheUsage
from minllm.errors import OutOfMemoryError

STEP_SECONDS = 0.025  # of a decode step


@dataclass
class Replay:
    """What was seen, a value a step. Bytes are whatever the policy counts."""

    batch: list[int] = field(default_factory=list)  # sequences that run
    waiting: list[int] = field(default_factory=list)  # requests that have arrived and do not run
    usage: list[CacheUsage] = field(default_factory=list)
    preemptions: int = 0
    computed_tokens: int = 0  # when a sequence entered: prompts, and all of what was preempted
    cached_tokens: int = 0  # that were in the cache already when their sequence entered, and not computed

    @property
    def busy_steps(self) -> list[int]:
        """The steps in which somebody waits: those in which the cache is what limits the batch. All steps where there is none."""
        return [step for step, waiting in enumerate(self.waiting) if waiting] or list(range(len(self.batch)))

    @property
    def mean_batch(self) -> float:
        """Sequences that run together, on average over the busy steps."""
        return sum(self.batch[step] for step in self.busy_steps) / len(self.busy_steps)

    @property
    def waste(self) -> float:
        """The share of the allocated bytes that holds no token, over the busy steps: 0 to 1."""
        usages = [self.usage[step] for step in self.busy_steps]
        return sum(usage.wasted for usage in usages) / max(1, sum(usage.allocated for usage in usages))

    @property
    def hit_rate(self) -> float:
        """The share of tokens that need not be computed when a sequence enters, 0 to 1."""
        return self.cached_tokens / (self.cached_tokens + self.computed_tokens)

    @property
    def mean_holding(self) -> float:
        """Bytes that hold tokens, on average over the busy steps."""
        return sum(self.usage[step].holding for step in self.busy_steps) / len(self.busy_steps)


@dataclass(eq=False, slots=True)
class Running:
    """A request under way: the tokens to compute when it enters, and how much of its answer it has."""

    name: int
    request: TrafficRequest
    tokens: list[int]
    answered: int = 0
    runs: bool = False


def replay(policy: CachePolicy, requests: list[TrafficRequest], max_num_seqs: int = 10_000) -> Replay:
    """Runs all requests to their ends. OutOfMemoryError where one of them can never fit."""
    found = Replay()
    coming = deque(Running(i, request, request.prompt) for i, request in enumerate(requests))
    waiting, running = deque(), []
    while coming or waiting or running:
        now = len(found.batch) * STEP_SECONDS
        while coming and coming[0].request.arrival <= now:
            waiting.append(coming.popleft())
        while waiting and len(running) < max_num_seqs and _admit(policy, waiting[0], found, is_alone=not running):
            running.append(waiting.popleft())
            running[-1].runs = True
        policy.take_copies()
        found.batch.append(len(running))
        found.waiting.append(len(waiting))
        found.usage.append(policy.usage())
        _step(policy, running, waiting, found)
        running = [entry for entry in running if entry.runs]
    return found


def _admit(policy: CachePolicy, entry: Running, found: Replay, is_alone: bool) -> bool:
    try:
        cached = policy.reserve(entry.name, entry.tokens)
    except OutOfMemoryError:
        if is_alone:
            raise
        return False
    policy.commit(entry.name, len(entry.tokens))
    found.computed_tokens += len(entry.tokens) - cached
    found.cached_tokens += cached
    return True


def _step(policy: CachePolicy, running: list[Running], waiting: deque[Running], found: Replay) -> None:
    """Every running sequence gets a token, or ends; who was admitted last makes room for the others."""
    for entry in running:
        if entry.runs and entry.answered == len(entry.request.answer):
            policy.free(entry.name)
            entry.runs = False
        while entry.runs:  # until it has its token, or is preempted itself
            try:
                policy.append(entry.name, entry.request.answer[entry.answered : entry.answered + 1])
                entry.answered += 1
                policy.commit(entry.name, len(entry.request.prompt) + entry.answered - 1)
                break
            except OutOfMemoryError:
                last = next(other for other in reversed(running) if other.runs)
                if last is running[0]:
                    raise
                last.runs, last.tokens = False, policy.preempt(last.name)
                waiting.appendleft(last)
                found.preemptions += 1
