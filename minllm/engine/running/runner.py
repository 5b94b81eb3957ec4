"""The interface of runners, which execute steps: ModelRunner runs a model; simulations only count steps or advance a clock."""

from collections.abc import Sequence
from typing import Protocol

from minllm.engine.running.forward_result import Pending
from minllm.engine.scheduling.step import Step


class Runner(Protocol):
    """Executes steps."""

    @property
    def steps_ahead(self) -> int:
        """The number of steps that may be launched before the results of an earlier one are read."""
        ...

    def use_in_this_thread(self) -> None:
        """Prepare this thread to execute steps."""

    def execute(self, step: Step) -> Sequence[Pending]:
        """Launch a step; the results of its forwards are in the order of `step.sampled`."""
        ...
