"""The runner of a rank. That of rank 0 publishes every step before it executes it, and the ranks meet in the operations of the forward."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from minllm.engine.progress import Progress
from minllm.engine.ranks.published import published
from minllm.engine.ranks.watchdog import STEP_SECONDS, Watchdog
from minllm.engine.requests.sequence import Sequence
from minllm.engine.running.batch_arrays import to_backend
from minllm.engine.running.forward_result import ForwardResult, PendingForward
from minllm.engine.running.host_copies import Readback
from minllm.engine.running.model_runner import ModelRunner
from minllm.engine.scheduling.step import Span, Step
from minllm.kernels.sampling.tensors import SamplingKind
from minllm.models.decoder import forward
from minllm.ops.protocol import Batch
from minllm.parallel.processes import OtherRanks


class Execute(NamedTuple):
    """Execute a published step."""

    step: Step


class Score(NamedTuple):
    """Compute the logits of a batch, whose arrays are on the host."""

    batch: Batch


class Capture(NamedTuple):
    """Capture the graphs of decode steps, which ends the warm-up, and reply."""

    kinds: list[SamplingKind]


class CheckedForward:
    """A PendingForward whose results count only if no rank has ended while they were computed; if it fails, all ranks end."""

    def __init__(self, result: PendingForward, runner: "LeadingRunner"):
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
    """A PendingForward whose results count only if this rank has waited for no peer in vain."""

    def __init__(self, result: PendingForward, fault: Readback, check: Callable[[np.ndarray], None]):
        self._result, self._fault, self._check = result, fault, check

    def wait(self) -> ForwardResult:
        """The results. Raises DeviceError."""
        found = self._result.wait()
        self._check(*self._fault.wait())
        return found


class RankRunner(ModelRunner):
    """A ModelRunner that is one of several. leads: whether it is rank 0's, which runs the functions of users."""

    leads = False

    @property
    def num_stages(self) -> int:
        """Stages of the pipeline that this rank is part of."""
        return self.ops.grid.pipeline

    def watching(self) -> AbstractContextManager:
        """A context in which this rank waits for its device."""
        return nullcontext()

    def close(self) -> None:
        """Wait for what was launched, drop the graphs, and then the links: NCCL's communicator must outlive graphs that it is part of."""
        self.machine.use_in_this_thread()
        self.ops.finish()
        super().close()
        self.ops.disconnect()

    def _process(self, logits: Any, sequence: Sequence) -> np.ndarray:
        """Rank 0 lets the sequence's own functions change its logits, and all get the result. Returns the logits before that."""
        with self.watching():
            computed = self.ops.to_host(logits).copy()
        if self.leads:
            try:
                computed = super()._process(logits, sequence)
            except Exception as error:  # noqa: BLE001 - whatever a user's function raises; the ranks finish the step first
                self.fault = error
        self.ops.share_row(logits)
        return computed

    def capture_graphs(self, kinds: Iterable[SamplingKind], progress: Progress | None = None) -> None:
        """Capture the graphs; all that steps need is compiled then."""
        super().capture_graphs(kinds, progress)
        self.ops.warmed_up()

    def forwards(self, step: Step) -> list[list[Span]]:
        """The spans of each forward; each stage of a pipeline works on another of as many micro-batches as there are stages."""
        return [part for spans in super().forwards(step) for part in micro_batches(spans, self.num_stages)]

    def _launch_all(self, forwards: list[list[Span]], makes_drafts: bool) -> list[PendingForward]:
        """Launch forwards. A stage computes all micro-batches before it waits for the tokens of the first, which the last stage chooses."""
        if self.num_stages == 1:
            return super()._launch_all(forwards, makes_drafts)
        begun = [self._begin(spans) for spans in forwards]
        return [self._finish(spans, *one) for spans, one in zip(forwards, begun, strict=True)]

    def _read(self, *computed: Any, **sampled: Any) -> PendingForward | FaultlessForward:
        """Start to bring the results of a forward to the host, and with them the fault that kernels between peers may note."""
        found, fault = super()._read(*computed, **sampled), self.ops.fault()
        if fault is None:
            return found
        return FaultlessForward(found, Readback(self.machine, self._pinned, [fault]), self.ops.communicator.check)

    def _begin(self, spans: list[Span]) -> tuple[Any, Any, Any]:
        """Launch a forward: (slots of its rows, batch, logits)."""
        slots, _ = self._rows(spans, _sampled(spans))
        batch, slots = self._sent(*self._batch(spans, slots, _scored(spans)), _sampled(spans))
        return slots, batch, self.logits_of(slots, batch)

    def _finish(self, spans: list[Span], slots: Any, batch: Batch, logits: Any) -> PendingForward:
        """Launch the choice of a forward's tokens."""
        sampled = _sampled(spans)
        _, rows = self._rows(spans, sampled)
        processed = [(row, sequence) for row, sequence in zip(rows, sampled, strict=True) if sequence.logits_processors]
        results = self.choose(logits, slots, batch, self.slots.kind(sampled), processed)
        return self._read(*results, sampled=sampled, rows=rows, scored=_scored(spans))


class LeadingRunner(RankRunner):
    """Rank 0's. `processes` is set once all ranks have loaded. Raises RankError if a rank has ended."""

    leads = True
    fault: Exception | None = None  # of a user's function, in this step
    processes: OtherRanks
    watchdog: Watchdog | None = None  # once all have warmed up

    def watching(self) -> AbstractContextManager:
        """A context in which this rank waits for its device; all ranks end if that takes too long."""
        return nullcontext() if self.watchdog is None else self.watchdog.watching()

    def close(self) -> None:
        """The same, unwatched."""
        if self.watchdog is not None:
            self.watchdog.close()
        super().close()

    def execute(self, step: Step) -> list[CheckedForward]:
        """Publish a step and launch it."""
        self.processes.send(Execute(published(step, self.policy, self.speculator is not None)))
        self.fault = None
        results = self._together(lambda: super(LeadingRunner, self).execute(step))
        if self.fault is not None:
            raise self.fault
        return [CheckedForward(result, self) for result in results]

    def capture_graphs(self, kinds: Iterable[SamplingKind], progress: Progress | None = None) -> None:
        """Capture the graphs on all ranks."""
        kinds = sorted(kinds)
        self.processes.send(Capture(kinds))
        self._together(lambda: super(LeadingRunner, self).capture_graphs(kinds, progress))
        self.processes.replies()  # a step may take seconds, and capturing takes longer
        self.watchdog = Watchdog(self.give_up)

    def score(self, batch: Batch) -> Any:
        """The logits of a batch whose arrays are on the host, computed on all ranks."""
        self.processes.send(Score(batch))
        with self.watching():
            return self._together(lambda: self.ops.array(self.ops.to_host(forward_of(self, batch))))

    def give_up(self) -> None:
        """End all ranks, because the results of a step do not come."""
        reason = "its cause is unknown"
        try:
            reason = self.ops.missing_peer()
        finally:
            self.processes.end(f"Rank 0 has waited {STEP_SECONDS:.0f} s for the results of a step, and all ranks have ended: {reason}.")

    def _together(self, work: Callable[[], Any]) -> Any:
        """What `work` returns, which all ranks are doing; if it fails here, none can go on."""
        try:
            return work()
        except Exception as error:
            raise self.processes.failed(error) from error


def micro_batches(spans: list[Span], count: int) -> list[list[Span]]:
    """The spans, in their order, in up to `count` parts of about as many tokens."""
    total, parts, done = sum(span.length for span in spans), [[] for _ in range(count)], 0
    for span in spans:
        parts[min(count - 1, done * count // max(1, total))].append(span)
        done += span.length
    return [part for part in parts if part]


def _sampled(spans: list[Span]) -> list[Sequence]:
    """The sequences that get a token."""
    return [sequence for span in spans for sequence in span.sampled]


def _scored(spans: list[Span]) -> list[Span]:
    """The chunks of prompts whose log-probabilities are wanted."""
    return [span for span in spans if not span.decodes and span.sequence.scores_prompt]


def forward_of(runner: ModelRunner, batch: Batch) -> Any:
    """The logits of a batch whose arrays are on the host."""
    return forward(runner.ops, runner.model, to_backend(batch, runner.ops), runner.cache.layers)
