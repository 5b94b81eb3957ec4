"""An engine that computes nothing and logs what its loop does, for the checks of the loop."""

from minllm.engine.running.forward_result import ForwardResult
from minllm.engine.scheduling.step import Step


class LaunchError(Exception):
    """What execute raises for a broken step."""


class NumberedStep(Step):
    """A step with a number and nothing to compute."""

    def __init__(self, number: int):
        super().__init__()
        self.number = number

    def __repr__(self) -> str:
        return f"step {self.number}"


class LoggingEngine:
    """A scheduler and a runner in one. It computes nothing and logs every call of the loop as (verb, number of the step).

    steps: the number of steps to plan. blocked: a step that cannot be planned before all launched ones are read. broken: a step that
    cannot be launched.
    """

    def __init__(self, steps: int, steps_ahead: int, blocked: int = 0, broken: int = 0):
        self.steps, self.steps_ahead, self.blocked, self.broken = steps, steps_ahead, blocked, broken
        self.planned = 0
        self.log: list[tuple[str, int]] = []

    def schedule(self) -> NumberedStep | None:
        """Plan the next step."""
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
        """The sequences that got a token, by names."""
        return [f"sequence of {step}"]

    def fail(self, step: NumberedStep, error: Exception) -> list[str]:
        """The sequences that end with a step."""
        self.log.append(("fail", step.number))
        return [f"sequence of {step}"]

    def take_ended(self) -> list[str]:
        """None."""
        return []

    @property
    def num_unfinished(self) -> int:
        """Steps that are left."""
        return self.steps - self.planned

    def numbers(self, verb: str) -> list[int]:
        """The steps that were planned, launched, read or failed."""
        return [number for what, number in self.log if what == verb]


class LoggedResult:
    """A result that logs when it is waited for."""

    def __init__(self, engine: LoggingEngine, number: int):
        self.engine, self.number = engine, number

    def wait(self) -> ForwardResult:
        """Log it."""
        self.engine.log.append(("read", self.number))
        return ForwardResult([], [self.number], None, [])


class ReferenceLoop:
    """The engine's loop in other words: plan and launch until the queue is full, then read the oldest."""

    def __init__(self, engine: LoggingEngine, _runner: object, _tokenizer: None):
        self.engine, self.unread = engine, []

    @property
    def has_work(self) -> bool:
        """Whether anything is left."""
        return bool(self.engine.num_unfinished or self.unread)

    def step(self) -> list[str]:
        """Fill the queue, read one."""
        for _ in range(self.engine.steps_ahead + 1 - len(self.unread)):
            step = self.engine.schedule()
            if step is None:
                break
            self.unread += self.engine.execute(step)
        if self.unread:
            self.unread.pop(0).wait()
        return []
