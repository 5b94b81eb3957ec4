"""The runner of a rank. That of rank 0 publishes every step before it executes it, and the ranks meet in the operations of the forward."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from minllm.engine.progress import Progress
from minllm.engine.ranks.published import published
from minllm.engine.requests.sequence import Sequence
from minllm.engine.running.batch_arrays import to_backend
from minllm.engine.running.forward_result import PendingForward
from minllm.engine.running.model_runner import ModelRunner
from minllm.engine.scheduling.step import Step
from minllm.kernels.sampling.tensors import SamplingKind
from minllm.models.decoder import forward
from minllm.ops.protocol import Batch
from minllm.parallel.processes import RankProcesses


class Execute(NamedTuple):
    """Execute a published step."""

    step: Step


class Score(NamedTuple):
    """Compute the logits of a batch, whose arrays are on the host."""

    batch: Batch


class Capture(NamedTuple):
    """Capture the graphs of decode steps."""

    kinds: list[SamplingKind]


class RankRunner(ModelRunner):
    """A ModelRunner that is one of several. leads: whether it is rank 0's, which runs the functions of users."""

    leads = False

    def _process(self, logits: Any, sequence: Sequence) -> np.ndarray:
        """Rank 0 lets the sequence's own functions change its logits, and all get the result. Returns the logits before that."""
        computed = self.ops.to_host(logits).copy()
        if self.leads:
            try:
                computed = super()._process(logits, sequence)
            except Exception as error:  # noqa: BLE001 - whatever a user's function raises; the ranks finish the step first
                self.fault = error
        self.ops.communicator.broadcast(logits)
        return computed


class LeadingRunner(RankRunner):
    """Rank 0's. `processes` is set once all ranks have loaded. Raises RankError if a rank has ended."""

    leads = True
    fault: Exception | None = None  # of a user's function, in this step
    processes: RankProcesses

    def execute(self, step: Step) -> list[PendingForward]:
        """Publish a step and launch it."""
        self.processes.send(Execute(published(step, self.policy, self.speculator is not None)))
        self.fault = None
        results = self._together(lambda: super(LeadingRunner, self).execute(step))
        if self.fault is not None:
            raise self.fault
        return results

    def capture_graphs(self, kinds: Iterable[SamplingKind], progress: Progress | None = None) -> None:
        """Capture the graphs on all ranks."""
        kinds = sorted(kinds)
        self.processes.send(Capture(kinds))
        self._together(lambda: super(LeadingRunner, self).capture_graphs(kinds, progress))

    def score(self, batch: Batch) -> Any:
        """The logits of a batch whose arrays are on the host, computed on all ranks."""
        self.processes.send(Score(batch))
        return self._together(lambda: self.ops.array(self.ops.to_host(forward_of(self, batch))))

    def _together(self, work: Callable[[], Any]) -> Any:
        """What `work` returns, which all ranks are doing; if it fails here, none can go on."""
        try:
            return work()
        except Exception as error:
            raise self.processes.failed(error) from error


def forward_of(runner: ModelRunner, batch: Batch) -> Any:
    """The logits of a batch whose arrays are on the host."""
    return forward(runner.ops, runner.model, to_backend(batch, runner.ops), runner.cache.layers)
