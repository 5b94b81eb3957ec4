"""The results of a forward, while they are copied to the host and afterwards."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from minllm.engine.requests.sequence import Sequence
from minllm.engine.running.host_copies import Readback
from minllm.engine.scheduling.step import Span, Verified
from minllm.kernels.sampling.log_probabilities import LogProbabilities


class ForwardResult(NamedTuple):
    """The results of a forward, on the host."""

    sampled: list[Sequence]
    token_ids: list[int]  # one per sampled sequence, or verified.counts of them
    logprobs: LogProbabilities | None  # log-probabilities of token_ids; None if no sequence needs them
    prompt_logprobs: list[tuple[Span, LogProbabilities]]  # row i: the prompt token after the span's i-th token
    verified: Verified | None = None  # None if the engine does not speculate

    @property
    def owners(self) -> list[Sequence]:
        """The sequence of each token."""
        if self.verified is None:
            return self.sampled
        return [sequence for sequence, count in zip(self.sampled, self.verified.counts, strict=True) for _ in range(count)]


class Pending(Protocol):
    """Results that are being computed."""

    def wait(self) -> ForwardResult:
        """Wait for the results; to be called once."""
        ...


class LateForward:
    """A forward whose tokens are chosen later, because grammars decide on them, and tokens of the step before on the grammars.

    choose: launches the choice; called once, when the results of the step before have been taken.
    """

    def __init__(self, choose: Callable[[], Pending]):
        self._choose: Callable[[], Pending] | None = choose
        self._pending: Pending | None = None
        self._error: BaseException | None = None

    def start(self) -> None:
        """Launch the choice, unless that is done; `wait` raises its error."""
        choose, self._choose = self._choose, None
        if choose is not None:
            try:
                self._pending = choose()
            except BaseException as error:  # noqa: BLE001 - whatever it is, those who wait for this step learn of it
                self._error = error

    def wait(self) -> ForwardResult:
        """Wait for the results; to be called once."""
        self.start()
        if self._error is not None or self._pending is None:
            raise self._error or RuntimeError("the choice of a forward is being launched")
        return self._pending.wait()


class PendingForward:
    """The results of a launched forward, while they are copied to the host.

    rows: the row of each sampled sequence, or with drafts the first row of its run.
    """

    def __init__(
        self, readback: Readback, sampled: list[Sequence], rows: list[int], has_logprobs: bool, scored: list[Span], num_verified: int = 0,
        has_drafts: bool = False,
    ):  # fmt: skip
        """num_verified: the number of arrays about verifications (Speculator.choose), after the tokens. has_drafts: the next drafts of all
        slots, int32 [S, K], follow them, for grammars."""
        self._readback, self._sampled, self._rows, self._has_logprobs, self._scored = readback, sampled, rows, has_logprobs, scored
        self._num_verified, self._slots = num_verified, [sequence.slot for sequence in sampled] if has_drafts else []

    def wait(self) -> ForwardResult:
        """Wait for the results; to be called once."""
        tokens, *others = self._readback.wait()
        rows, verified = self._rows, None
        if self._num_verified:
            counts, num_drafts, *path = others[: self._num_verified]
            others = others[self._num_verified :]
            verified = Verified(counts[rows].tolist(), num_drafts[rows].tolist())
            rows = [row for first, count in zip(rows, verified.counts, strict=True) for row in range(first, first + count)]
            if path:
                rows = path[0][rows].tolist()
        if self._slots:
            drafts, *others = others
            for sequence, slot in zip(self._sampled, self._slots, strict=True):
                if sequence.grammar is not None:
                    sequence.grammar.drafts = drafts[slot].tolist()
        logprobs = LogProbabilities(*(array[rows] for array in others[:4])) if self._has_logprobs else None
        prompt_logprobs, row = [], 0
        for span in self._scored:
            prompt_logprobs.append((span, LogProbabilities(*(array[row : row + span.length] for array in others[-4:]))))
            row += span.length
        return ForwardResult(self._sampled, tokens[rows].tolist(), logprobs, prompt_logprobs, verified)
