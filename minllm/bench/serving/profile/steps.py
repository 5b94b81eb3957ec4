"""The steps of a traced run: the time of each step and of its stages, and the time in which no kernel runs.

Kernels overlap: with programmatic dependent launch a kernel starts before its predecessor has ended, and waits. So the time of a kernel
counts from the end of the kernel that ended before it to its own end, without the time in which no kernel runs. These times and the idle
time add up to the time of the step, which lasts from the end of the previous step to its own end.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from minllm.bench.serving.profile.stages import ADVANCE, WRITE_SLOTS, stage_of
from minllm.errors import DeviceError

FULL = 7 / 8  # decode steps with at least this share of the largest batch are averaged; smaller ones occur as requests end


class Event(NamedTuple):
    """A kernel or a copy on the GPU, in microseconds."""

    name: str
    begin: float
    end: float
    is_copy: bool = False


class StepSize(NamedTuple):
    """The numbers of sequences that a step decodes, of prompts that it computes in part, and of all its tokens."""

    decodes: int
    prompts: int
    tokens: int


@dataclass(frozen=True)
class TracedStep:
    """A step on the GPU, in microseconds.

    begin: the end of the previous step; forward: the start of the forward pass.
    """

    size: StepSize
    begin: float
    forward: float
    end: float
    events: list[Event]
    stages: dict[str, float]  # time of kernels by stage
    idle_between: float  # time without a kernel before the forward pass
    idle_within: float  # time without a kernel after its start

    @property
    def time(self) -> float:
        """Microseconds from the end of the previous step to the end of this one."""
        return self.end - self.begin


def traced_steps(events: Sequence[Event], sizes: Sequence[StepSize]) -> list[TracedStep]:
    """The steps of a run, with the sizes that the engine recorded.

    Raises DeviceError if the trace has more or fewer steps.
    """
    groups = list(split_into_steps(sorted(events, key=lambda event: event.end)))
    if len(groups) != len(sizes):
        raise DeviceError(f"The trace has {len(groups)} steps and the engine computed {len(sizes)}: kernels were lost. Trace fewer.")
    steps, begin = [], min((event.begin for event in events), default=0.0)
    for group, size in zip(groups, sizes, strict=True):
        steps.append(traced_step(group, size, begin))
        begin = steps[-1].end
    return steps


def split_into_steps(events: Sequence[Event]) -> Iterator[list[Event]]:
    """Yields the events of each step, which ends with an ADVANCE kernel.

    Events after the last one belong to no step.
    """
    group: list[Event] = []
    for event in events:
        group.append(event)
        if event.name.startswith(ADVANCE):
            yield group
            group = []


def traced_step(events: list[Event], size: StepSize, begin: float) -> TracedStep:
    """One step, from its events sorted by end; begin: the end of the previous step."""
    kernels = [event for event in events if not event.is_copy]
    forward = min(event.begin for event in kernels if not event.name.startswith(WRITE_SLOTS))
    # for each kernel, the first begin of it and all that end later
    first_begins = [*accumulate((event.begin for event in reversed(kernels)), min)][::-1]
    stages, idle, before = defaultdict(float), {True: 0.0, False: 0.0}, begin
    for kernel, first_begin in zip(kernels, first_begins, strict=True):
        start = max(before, first_begin)
        idle[start <= forward] += start - before
        stages[stage_of(kernel.name)] += kernel.end - start
        before = kernel.end
    return TracedStep(size, begin, forward, before, events, dict(stages), idle[True], idle[False])


def steps_by_kind(steps: Sequence[TracedStep]) -> dict[str, list[TracedStep]]:
    """Steps with prompts ("mixed"), and steps of decodes only with a full batch ("decode"); a kind without steps is left out.

    The first step of the run is left out, because no previous step defines its begin.
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
        """Microseconds per step in which a kernel runs."""
        return sum(self.stages.values())
