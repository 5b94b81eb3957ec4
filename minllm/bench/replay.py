"""Replays traffic on a cache policy: how many sequences run together, and how much of the memory holds tokens.

The replay is an engine without a model. Every step admits waiting requests in the order of arrival while the policy has memory for their
prompts, then gives each running sequence a token; a finished sequence leaves at once, and others enter (in-flight batching, Yu et al.,
"Orca", 2022). Memory is reserved only for the prompt. If there is none for the next token of a running sequence, the most recently admitted
sequence is preempted: its memory is freed, and it moves to the front of the queue to be recomputed (Kwon et al. 2023, section 4.5). The
result depends only on the traffic, the policy and the length of a step.
"""

from collections import deque
from dataclasses import dataclass, field

from minllm.bench.traffic import TrafficRequest
from minllm.cache.policy import CachePolicy, CacheUsage
from minllm.errors import OutOfMemoryError

STEP_SECONDS = 0.025  # duration of a decode step


@dataclass
class Replay:
    """The observations of a replay, one value per step in each list. Bytes are as the policy counts them."""

    batch: list[int] = field(default_factory=list)  # running sequences
    waiting: list[int] = field(default_factory=list)  # requests that have arrived and are not running
    usage: list[CacheUsage] = field(default_factory=list)
    preemptions: int = 0
    computed_tokens: int = 0  # tokens computed at admission: prompts, and all tokens of preempted sequences
    cached_tokens: int = 0  # tokens found in the cache at admission, and not computed

    @property
    def busy_steps(self) -> list[int]:
        """The steps with waiting requests, in which the cache limits the batch; all steps if there are none."""
        return [step for step, waiting in enumerate(self.waiting) if waiting] or list(range(len(self.batch)))

    @property
    def mean_batch(self) -> float:
        """Running sequences, averaged over the busy steps."""
        return sum(self.batch[step] for step in self.busy_steps) / len(self.busy_steps)

    @property
    def waste(self) -> float:
        """The share of the allocated bytes that holds no token, over the busy steps: 0 to 1."""
        usages = [self.usage[step] for step in self.busy_steps]
        return sum(usage.wasted for usage in usages) / max(1, sum(usage.allocated for usage in usages))

    @property
    def hit_rate(self) -> float:
        """The share of tokens found in the cache at admission, 0 to 1."""
        return self.cached_tokens / (self.cached_tokens + self.computed_tokens)

    @property
    def mean_holding(self) -> float:
        """Bytes that hold tokens, averaged over the busy steps."""
        return sum(self.usage[step].holding for step in self.busy_steps) / len(self.busy_steps)


@dataclass(eq=False, slots=True)
class Running:
    """A waiting or running request: the tokens to compute at admission, and the length of its answer so far."""

    name: int
    request: TrafficRequest
    tokens: list[int]
    answered: int = 0
    runs: bool = False


def replay(policy: CachePolicy, requests: list[TrafficRequest], max_num_seqs: int = 10_000) -> Replay:
    """Run all requests to completion. Raises OutOfMemoryError if one of them can never fit."""
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
    """Give every running sequence a token, or end it; preempts the most recently admitted ones if memory runs out."""
    for entry in running:
        if entry.runs and entry.answered == len(entry.request.answer):
            policy.free(entry.name)
            entry.runs = False
        while entry.runs:  # until it gets its token or is preempted itself
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
