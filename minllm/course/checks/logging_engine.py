"""An engine that computes nothing and logs the calls of its loop, for the checks of the loop."""

from minllm.engine.running.forward_result import ForwardResult
from minllm.engine.scheduling.step import Step


class LaunchError(Exception):
    """The error that execute raises for a broken step."""


class NumberedStep(Step):
    """A step with a number and nothing to compute."""

    def __init__(self, number: int):
        super().__init__()
        self.number = number

    def __repr__(self) -> str:
        return f"step {self.number}"


class LoggingEngine:
    """A scheduler, its queues and a runner in one, which computes nothing and logs every call of the loop as (verb, number of the step).

    steps: the number of steps to plan. blocked: the number of a step that cannot be planned before all launched ones are read. broken: the
    number of a step that cannot be launched.
    """

    def __init__(self, steps: int, steps_ahead: int, blocked: int = 0, broken: int = 0):
        self.steps, self.steps_ahead, self.blocked, self.broken = steps, steps_ahead, blocked, broken
        self.planned, self.queues = 0, self
        self.log: list[tuple[str, int]] = []

    def schedule(self) -> NumberedStep | None:
        """Plan and return the next step; None if there is none, or if it is blocked."""
        following, unread = self.planned + 1, len(self.numbers("launch")) - len(self.numbers("read"))
        if following > self.steps or (following == self.blocked and unread):
            return None
        self.planned = following
        self.log.append(("plan", following))
        return NumberedStep(following)

    def execute(self, step: NumberedStep) -> list["LoggedResult"]:
        """Launch a step."""
        if step.number == self.broken:
            raise LaunchError("out of memory")
        self.log.append(("launch", step.number))
        return [LoggedResult(self, step.number)]

    def take(self, step: NumberedStep, token_ids: list[int], logprobs: None) -> list[str]:
        """The names of the sequences that got a token."""
        return [f"sequence of {step}"]

    def fail(self, step: NumberedStep, error: Exception) -> list[str]:
        """The names of the sequences that end with a failed step."""
        self.log.append(("fail", step.number))
        return [f"sequence of {step}"]

    def take_ended(self) -> list[str]:
        """An empty list: no sequence ends outside of a step."""
        return []

    @property
    def num_unfinished(self) -> int:
        """The number of steps that are left."""
        return self.steps - self.planned

    def numbers(self, verb: str) -> list[int]:
        """The numbers of the steps that were planned, launched, read or failed."""
        return [number for what, number in self.log if what == verb]


class LoggedResult:
    """A result that logs the call of `wait`."""

    def __init__(self, engine: LoggingEngine, number: int):
        self.engine, self.number = engine, number

    def wait(self) -> ForwardResult:
        """Log the read; returns the result."""
        self.engine.log.append(("read", self.number))
        return ForwardResult([], [self.number], None, [])


class ReferenceLoop:
    """Another implementation of the engine's loop: plans and launches until the queue is full, then reads the oldest step."""

    def __init__(self, engine: LoggingEngine, _runner: object, _tokenizer: None):
        self.engine, self.unread = engine, []

    @property
    def has_work(self) -> bool:
        """Whether any step is left to plan or to read."""
        return bool(self.engine.num_unfinished or self.unread)

    def step(self) -> list[str]:
        """Fill the queue, then read the oldest step."""
        for _ in range(self.engine.steps_ahead + 1 - len(self.unread)):
            step = self.engine.schedule()
            if step is None:
                break
            self.unread += self.engine.execute(step)
        if self.unread:
            self.unread.pop(0).wait()
        return []
