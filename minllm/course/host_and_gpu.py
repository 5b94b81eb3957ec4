"""A host and a GPU on a simulated clock, to show where a loop over steps waits.

The engine's loop, its scheduler and its model run unchanged; only time is simulated. The host does one thing after another. The GPU
executes launches in order, while the host continues. So the timeline of a step can be drawn without a GPU, and is the same on every
machine:

    machine = HostAndGpu()
    core = EngineCore(TimedScheduler(scheduler, machine, times), TimedRunner(runner, machine, times, steps_ahead=1), tokenizer)
    core.run(sequences)
    timeline(machine.spans, "µs", "...")
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minllm.bench.serving.virtual_clock import VirtualClock
from minllm.engine.running.runner import Runner
from minllm.engine.scheduling.scheduler import Scheduler
from minllm.engine.scheduling.step import Step
from minllm.figures.timeline import Span

HOST, GPU = "host", "GPU"
LAUNCH_COLOUR, READ_COLOUR, WAIT_COLOUR = 1, 2, 3


class HostAndGpu:
    """A virtual clock in microseconds, with the spans of host and GPU work on it."""

    def __init__(self):
        self.clock = VirtualClock()
        self.spans: list[Span] = []

    @property
    def now(self) -> float:
        """The host's time."""
        return self.clock.time

    @property
    def gpu_ends(self) -> float:
        """The time at which the GPU finishes all launched work."""
        return self.clock.device_ends

    def work(self, name: str, microseconds: float, colour: int = LAUNCH_COLOUR) -> None:
        """Let the host work for this time."""
        start = self.now
        self.clock.wait(start + microseconds)
        self.spans.append(Span(HOST, start, self.now, name, colour))

    def launch(self, name: str, microseconds: float) -> float:
        """Queue work on the GPU; returns the time of its end. The host continues at once."""
        start, end = self.clock.launch(microseconds)
        self.spans.append(Span(GPU, start, end, name))
        return end

    def wait(self, until: float, name: str = "wait") -> None:
        """Let the host wait until this time, unless it has passed."""
        if until > self.now:
            self.work(name, until - self.now, WAIT_COLOUR)

    def bubbles(self) -> list[tuple[str, float]]:
        """(name of the next work, microseconds) for every gap between launches on the GPU."""
        computed = [span for span in self.spans if span.lane == GPU]
        gaps = [(after.name, after.start - before.end) for before, after in zip(computed, computed[1:])]
        return [(name, gap) for name, gap in gaps if gap > 1e-9]

    @property
    def gpu_share(self) -> float:
        """The share of time in which the GPU computes, between the beginning of its first work and the end of its last."""
        computed = [span for span in self.spans if span.lane == GPU]
        return sum(span.end - span.start for span in computed) / (computed[-1].end - computed[0].start)


@dataclass(frozen=True)
class StepTimes:
    """Microseconds of the parts of a step; gpu is a function of the Step."""

    gpu: Callable[[Any], float]
    schedule: float = 60
    upload: float = 30  # only if a sequence entered or its block table grew
    replay: float = 40
    take: float = 50


class TimedScheduler:
    """A scheduler that spends the host's time on planning steps and on taking tokens."""

    def __init__(self, scheduler: Scheduler, machine: HostAndGpu, times: StepTimes):
        self._scheduler, self._machine, self._times = scheduler, machine, times

    def schedule(self) -> Any:
        """The same as in Scheduler, and `schedule` microseconds."""
        step = self._scheduler.schedule()
        if step is not None:
            self._machine.work("schedule", self._times.schedule)
        return step

    def take(self, *results: Any) -> Any:
        """The same as in Scheduler, and `take` microseconds."""
        self._machine.work("take", self._times.take, READ_COLOUR)
        return self._scheduler.take(*results)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)


class TimedRunner:
    """A runner that spends the time of steps on the simulated GPU. steps_ahead: as for a machine."""

    def __init__(self, runner: Runner, machine: HostAndGpu, times: StepTimes, steps_ahead: int):
        self._runner, self._machine, self._times, self.steps_ahead = runner, machine, times, steps_ahead
        self._count = 0

    def execute(self, step: Step) -> list["TimedResult"]:
        """The same as in ModelRunner, and the time of upload, replay and the GPU."""
        results = self._runner.execute(step)
        if step.entered or step.grown:
            self._machine.work("upload", self._times.upload)
        self._machine.work("replay", self._times.replay)
        self._count += 1
        done = self._machine.launch(f"step {self._count}", self._times.gpu(step))
        return [TimedResult(result, done, self._machine) for result in results]


class TimedResult:
    """The results of a forward, which the host can read from time `done` on."""

    def __init__(self, result: Any, done: float, machine: HostAndGpu):
        self._result, self._done, self._machine = result, done, machine

    def wait(self) -> Any:
        """The same as in PendingForward; waits until `done`."""
        self._machine.wait(self._done, "read")
        return self._result.wait()
