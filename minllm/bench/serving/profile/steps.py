"""The steps of a traced run: how long each takes, what its stages take, and when no kernel runs.

Kernels overlap: with programmatic dependent launch a kernel starts before the one before it has ended, and waits. So a kernel's time is
what it adds: from the end of the kernel that ended before it to its own end, without the time in which no kernel runs. These times
and the idle time add up to the time of the step, which lasts from the end of the step before it to its own end.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from minllm.bench.serving.profile.stages import ADVANCE, WRITE_SLOTS, stage_of
from minllm.errors import DeviceError

FULL = 7 / 8  # decode steps of at least this share of the largest batch are summed up; smaller ones come as requests end


class Event(NamedTuple):
    """A kernel or a copy on the GPU; microseconds."""

    name: str
    begin: float
    end: float
    is_copy: bool = False


class StepSize(NamedTuple):
    """Sequences that a step decodes, prompts of which it computes a part, and all its tokens."""

    decodes: int
    prompts: int
    tokens: int


@dataclass(frozen=True)
class TracedStep:
    """A step on the GPU, in microseconds. begin: the end of the step before it; forward: the start of its forward pass."""

    size: StepSize
    begin: float
    forward: float
    end: float
    events: list[Event]
    stages: dict[str, float]  # time of kernels by stage
    idle_between: float  # without a kernel, before the forward pass
    idle_within: float  # without a kernel, after that

    @property
    def time(self) -> float:
        """From the end of the step before to the end of this one."""
        return self.end - self.begin


def traced_steps(events: Sequence[Event], sizes: Sequence[StepSize]) -> list[TracedStep]:
    """The steps of a run, whose sizes the engine has noted. Raises DeviceError if the trace has more or fewer steps."""
    groups = list(split_into_steps(sorted(events, key=lambda event: event.end)))
    if len(groups) != len(sizes):
        raise DeviceError(f"The trace has {len(groups)} steps and the engine computed {len(sizes)}: kernels were lost. Trace fewer.")
    steps, begin = [], min((event.begin for event in events), default=0.0)
    for group, size in zip(groups, sizes, strict=True):
        steps.append(traced_step(group, size, begin))
        begin = steps[-1].end
    return steps


def split_into_steps(events: Sequence[Event]) -> Iterator[list[Event]]:
    """Events by step; a step ends with its ADVANCE. What follows the last one belongs to no step."""
    group: list[Event] = []
    for event in events:
        group.append(event)
        if event.name.startswith(ADVANCE):
            yield group
            group = []


def traced_step(events: list[Event], size: StepSize, begin: float) -> TracedStep:
    """One step, whose events are sorted by their end; begin: the end of the step before."""
    kernels = [event for event in events if not event.is_copy]
    forward = min(event.begin for event in kernels if not event.name.startswith(WRITE_SLOTS))
    # When the first of a kernel and all that end later begins.
    first_begins = [*accumulate((event.begin for event in reversed(kernels)), min)][::-1]
    stages, idle, before = defaultdict(float), {True: 0.0, False: 0.0}, begin
    for kernel, first_begin in zip(kernels, first_begins, strict=True):
        start = max(before, first_begin)
        idle[start <= forward] += start - before
        stages[stage_of(kernel.name)] += kernel.end - start
        before = kernel.end
    return TracedStep(size, begin, forward, before, events, dict(stages), idle[True], idle[False])


def steps_by_kind(steps: Sequence[TracedStep]) -> dict[str, list[TracedStep]]:
    """Steps of prompts and decodes ("mixed"), and of decodes alone with a full batch ("decode"); a kind without steps is left out.

    The run's first step is left out, because no step before it says when it begins.
    """
    decodes = [step for step in steps[1:] if not step.size.prompts]
    full = FULL * max((step.size.decodes for step in decodes), default=0)
    kinds = {"decode": [step for step in decodes if step.size.decodes >= full], "mixed": [step for step in steps[1:] if step.size.prompts]}
    return {kind: found for kind, found in kinds.items() if found}


@dataclass(frozen=True)
class StepSummary:
    """The mean of several steps, in microseconds."""

    num_steps: int
    tokens: float
    time: float
    stages: dict[str, float]
    idle_between: float
    idle_within: float

    @classmethod
    def of(cls, steps: Sequence[TracedStep]) -> "StepSummary":
        """The mean of at least one step."""
        count = len(steps)
        stages = defaultdict(float)
        for step in steps:
            for stage, time in step.stages.items():
                stages[stage] += time / count
        times = (sum(getattr(step, name) for step in steps) / count for name in ("time", "idle_between", "idle_within"))
        time, between, within = times
        return cls(count, sum(step.size.tokens for step in steps) / count, time, dict(stages), between, within)

    @property
    def kernels(self) -> float:
        """Microseconds in which a kernel runs."""
        return sum(self.stages.values())
