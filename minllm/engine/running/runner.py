"""The interface of runners, which execute steps: ModelRunner runs a model; simulations only count steps or advance a clock."""

from typing import Protocol

from minllm.engine.running.forward_result import ForwardResult
from minllm.engine.scheduling.step import Step


class Pending(Protocol):
    """Results that are being computed."""

    def wait(self) -> ForwardResult:
        """Wait for the results; to be called once."""
        ...


class Runner(Protocol):
    """Executes steps. steps_ahead: the number of steps that may be launched before the results of an earlier one are read."""

    steps_ahead: int

    def execute(self, step: Step) -> list[Pending]:
        """Launch a step; the results of its forwards are in the order of `step.sampled`."""
        ...
