"""The runner of a rank. Rank 0's publishes every step before executing it; the ranks meet in the collectives of the forward."""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from minllm.costs.pipeline import micro_batches
from minllm.engine.progress import Progress
from minllm.engine.ranks.published import published
from minllm.engine.ranks.watchdog import Watchdog
from minllm.engine.requests.sequence import Sequence
from minllm.engine.running.batch_arrays import to_backend
from minllm.engine.running.forward_result import ForwardResult, Pending
from minllm.engine.running.host_copies import Readback
from minllm.engine.running.model_runner import ModelRunner
from minllm.engine.scheduling.step import Span, Step
from minllm.kernels.arguments import ceil_div
from minllm.kernels.sampling.tensors import SamplingKind
from minllm.models.decoder import forward
from minllm.ops.batch import Array, Batch
from minllm.parallel.time_limits import step_seconds


class Execute(NamedTuple):
    """A message: execute a published step."""

    step: Step


class Score(NamedTuple):
    """A message: compute the logits of a batch with its arrays on the host."""

    batch: Batch


class Capture(NamedTuple):
    """A message: capture the graphs of decode steps, which ends the warm-up, and reply."""

    kinds: list[SamplingKind]


class CheckedForward:
    """A PendingForward on rank 0: its results are valid only if no rank has ended meanwhile; if it fails, all ranks end."""

    def __init__(self, result: Pending, runner: "LeadingRunner"):
        self._result, self._runner = result, runner

    def wait(self) -> ForwardResult:
        """The results. Raises RankError."""
        processes = self._runner.processes
        try:
            with self._runner.watching():
                found = self._result.wait()
        except Exception as error:
            raise processes.failed(error) from error
        processes.check()
        return found


class FaultlessForward:
    """A PendingForward with results that are valid only if no kernel of this rank has given up waiting for a peer."""

    def __init__(self, result: Pending, fault: Readback, check: Callable[[np.ndarray], None]):
        self._result, self._fault, self._check = result, fault, check

    def wait(self) -> ForwardResult:
        """The results. Raises DeviceError."""
        found = self._result.wait()
        self._check(*self._fault.wait())
        return found


class RankRunner(ModelRunner):
    """The ModelRunner of one of several ranks. leads: whether it is rank 0's, which runs the users' functions."""

    leads = False
    chooses_late = False  # all ranks launch everything in one order, so rank 0 sends the masks with the step

    @property
    def num_stages(self) -> int:
        """The number of pipeline stages."""
        return self.ops.grid.pipeline

    @property
    def chooses_apart(self) -> bool:
        """Whether every choice is launched after all forwards of a step: in a pipeline, where all stages wait for the last one's."""
        return self.num_stages > 1

    def watching(self) -> AbstractContextManager:
        """A context for waiting for this rank's device."""
        return nullcontext()

    def close(self) -> None:
        """Wait for the launched steps, and drop the graphs."""
        self.machine.use_in_this_thread()
        with self.watching():
            self.ops.finish()
        super().close()

    def _process(self, logits: Array, sequence: Sequence) -> np.ndarray:
        """Apply the sequence's logits processors on rank 0, and send the result to all ranks. Returns the unprocessed logits."""
        with self.watching():
            computed = self.ops.to_host(logits).copy()
        if self.leads:
            computed = super()._process(logits, sequence)
        self.ops.share_row(logits)
        return computed

    def capture_graphs(self, kinds: Iterable[SamplingKind], progress: Progress | None = None) -> None:
        """Capture the graphs; afterwards everything that steps need is compiled."""
        super().capture_graphs(() if self.chooses_apart else kinds, progress)
        self.ops.warmed_up()

    def forwards(self, step: Step) -> list[list[Span]]:
        """The spans of each forward: a micro-batch for every stage to work on, if there are enough tokens.

        With a residual window a prompt stays whole: its scratch memory holds no second part of it.
        """
        return [part for spans in super().forwards(step) for part in divided(spans, self.num_stages, cuts_prompts=not self._window)]

    def _launch_all(self, forwards: list[list[Span]], makes_drafts: bool) -> Many[Pending]:
        """Launch forwards. A stage computes all micro-batches before it waits for the first one's tokens, chosen by the last stage."""
        launched = super()._launch_all(forwards, makes_drafts)
        self._choose_late()
        return launched

    def _read(self, tokens: Array, logits: Array, *verified: Any, sampled: list[Sequence], rows: list[int], scored: list[Span]) -> Pending:
        """Start copying the results of a forward to the host, and the fault that kernels between peers may have recorded."""
        found, fault = super()._read(tokens, logits, *verified, sampled=sampled, rows=rows, scored=scored), self.ops.fault()
        if fault is None:
            return found
        return FaultlessForward(found, Readback(self.machine, self._pinned, [fault]), self.ops.communicator.check)


class LeadingRunner(RankRunner):
    """The runner of rank 0. `processes` is set once all ranks have loaded. Raises RankError if a rank has ended."""

    leads = True
    processes: Any  # OtherRanks, or a LaunchedProgram, which has its methods
    watchdog: Watchdog | None = None  # None until all ranks have warmed up

    def watching(self) -> AbstractContextManager:
        """A context for waiting for this rank's device; all ranks end if that takes too long."""
        return nullcontext() if self.watchdog is None else self.watchdog.watching()

    def close(self) -> None:
        """Close as RankRunner does, then stop the watchdog."""
        super().close()
        if self.watchdog is not None:
            self.watchdog.close()

    def execute(self, step: Step) -> Many[Pending]:
        """Publish a step and launch it."""
        self.processes.send(Execute(published(step, self.policy, self.speculator is not None)))
        results = self._together(lambda: super(LeadingRunner, self).execute(step))
        return [CheckedForward(result, self) for result in results]

    def capture_graphs(self, kinds: Iterable[SamplingKind], progress: Progress | None = None) -> None:
        """Capture the graphs on all ranks."""
        kinds = sorted(kinds)
        self.processes.send(Capture(kinds))
        self._together(lambda: super(LeadingRunner, self).capture_graphs(kinds, progress))
        self.processes.replies()  # waits without the watchdog: a step may take seconds, and capturing takes longer
        self.watchdog = Watchdog(self.give_up, step_seconds())

    def score(self, batch: Batch) -> Any:
        """The logits of a batch with its arrays on the host, computed on all ranks."""
        self.processes.send(Score(batch))
        with self.watching():
            return self._together(lambda: self.ops.array(self.ops.to_host(forward_of(self, batch))))

    def give_up(self) -> None:
        """End all ranks, because the results of a step do not arrive."""
        reason = "its cause is unknown"
        try:
            reason = self.ops.missing_peer()
        finally:
            self.processes.end(f"Rank 0 has waited {step_seconds():g} s for the results of a step, and all ranks have ended: {reason}.")

    def _together(self, work: Callable[[], Any]) -> Any:
        """The result of `work`, which all ranks execute; if it fails or is interrupted here, all ranks end."""
        try:
            return work()
        except Exception as error:
            raise self.processes.failed(error) from error
        except BaseException as error:  # Ctrl-C: the other ranks would add the rest of this step to the sums of the next one
            self.processes.failed(error)
            raise


def divided(spans: list[Span], stages: int, cuts_prompts: bool = True) -> list[list[Span]]:
    """The spans of micro-batches, in their order, with about the same number of tokens.

    cuts_prompts: whether prompts may be cut; a stage computes their parts one after the other, as it does with chunks of several steps.
    """
    total, done = sum(span.length for span in spans), 0
    count = micro_batches(total, stages).count
    parts: list[list[Span]] = [[] for _ in range(count)]
    for span in spans:
        part = min(count - 1, done * count // max(1, total))
        while cuts_prompts and not span.decodes and (head := ceil_div((part + 1) * total, count) - done) < span.length:
            parts[part].append(span._replace(length=head, sampled=()))
            span = span._replace(start=span.start + head, length=span.length - head)
            part, done = part + 1, done + head
        parts[part].append(span)
        done += span.length
    return [part for part in parts if part]


def forward_of(runner: ModelRunner, batch: Batch) -> Any:
    """The logits of a batch with its arrays on the host."""
    return forward(runner.ops, runner.model, to_backend(batch, runner.ops), runner.cache.layers)
