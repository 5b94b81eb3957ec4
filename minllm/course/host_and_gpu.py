"""A host and a GPU on a simulated clock, to see where a loop over steps waits.

The engine's loop, its scheduler and its model run as they are; only time is simulated. The host does one thing after another. The GPU
computes what was launched, in order, while the host goes on. So the timeline of a step can be drawn on a machine without a GPU, and is the
same on every machine:

    machine = HostAndGpu()
    core = EngineCore(TimedScheduler(scheduler, machine, times), TimedRunner(runner, machine, times, steps_ahead=1), tokenizer)
    core.run(sequences)
    timeline(machine.spans, "µs", "...")
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minllm.bench.serving.virtual_clock import VirtualClock
from minllm.figures.timeline import Span

HOST, GPU = "host", "GPU"
LAUNCH_COLOUR, READ_COLOUR, WAIT_COLOUR = 1, 2, 3


class HostAndGpu:
    """A virtual clock in microseconds, and the spans of what happened on it."""

    def __init__(self):
        self.clock = VirtualClock()
        self.spans: list[Span] = []

    @property
    def now(self) -> float:
        """The host's time."""
        return self.clock.time

    @property
    def gpu_ends(self) -> float:
        """When the GPU will have computed all that was launched."""
        return self.clock.device_ends

    def work(self, name: str, microseconds: float, colour: int = LAUNCH_COLOUR) -> None:
        """The host is busy."""
        start = self.now
        self.clock.wait(start + microseconds)
        self.spans.append(Span(HOST, start, self.now, name, colour))

    def launch(self, name: str, microseconds: float) -> float:
        """Queue work of the GPU; returns when it will be done. The host goes on at once."""
        start, end = self.clock.launch(microseconds)
        self.spans.append(Span(GPU, start, end, name))
        return end

    def wait(self, until: float, name: str = "wait") -> None:
        """The host waits until then, unless that time has passed."""
        if until > self.now:
            self.work(name, until - self.now, WAIT_COLOUR)

    def bubbles(self) -> list[tuple[str, float]]:
        """(name of the work that came late, microseconds) for every gap on the GPU between two pieces of work."""
        computed = [span for span in self.spans if span.lane == GPU]
        gaps = [(after.name, after.start - before.end) for before, after in zip(computed, computed[1:])]
        return [(name, gap) for name, gap in gaps if gap > 1e-9]

    @property
    def gpu_share(self) -> float:
        """The share of the time from the GPU's first work to its last in which it computed."""
        computed = [span for span in self.spans if span.lane == GPU]
        return sum(span.end - span.start for span in computed) / (computed[-1].end - computed[0].start)


@dataclass(frozen=True)
class StepTimes:
    """Microseconds of a step's parts; gpu is a function of the Step."""

    gpu: Callable[[Any], float]
    schedule: float = 60
    upload: float = 30  # only if a sequence entered or its block table grew
    replay: float = 40
    take: float = 50


class TimedScheduler:
    """A scheduler whose planning, and taking of tokens, takes the host's time."""

    def __init__(self, scheduler: Any, machine: HostAndGpu, times: StepTimes):
        self._scheduler, self._machine, self._times = scheduler, machine, times

    def schedule(self) -> Any:
        """See Scheduler."""
        step = self._scheduler.schedule()
        if step is not None:
            self._machine.work("schedule", self._times.schedule)
        return step

    def take(self, *results: Any) -> Any:
        """See Scheduler."""
        self._machine.work("take", self._times.take, READ_COLOUR)
        return self._scheduler.take(*results)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)


class TimedRunner:
    """A runner whose steps are computed on the simulated GPU. steps_ahead: as a machine's."""

    def __init__(self, runner: Any, machine: HostAndGpu, times: StepTimes, steps_ahead: int):
        self._runner, self._machine, self._times, self.steps_ahead = runner, machine, times, steps_ahead
        self._count = 0

    def execute(self, step: Any) -> list["TimedResult"]:
        """See ModelRunner."""
        results = self._runner.execute(step)
        if step.entered or step.grown:
            self._machine.work("upload", self._times.upload)
        self._machine.work("replay", self._times.replay)
        self._count += 1
        done = self._machine.launch(f"step {self._count}", self._times.gpu(step))
        return [TimedResult(result, done, self._machine) for result in results]


class TimedResult:
    """The results of a forward, which reach the host at `done`."""

    def __init__(self, result: Any, done: float, machine: HostAndGpu):
        self._result, self._done, self._machine = result, done, machine

    def wait(self) -> Any:
        """See PendingForward."""
        self._machine.wait(self._done, "read")
        return self._result.wait()
