"""The results of a forward, on their way to the host and there."""

from typing import NamedTuple

from minllm.engine.requests.sequence import Sequence
from minllm.engine.running.host_copies import Readback
from minllm.engine.scheduling.step import Span
from minllm.kernels.sampling.log_probabilities import LogProbabilities


class ForwardResult(NamedTuple):
    """What a forward computed, on the host."""

    sampled: list[Sequence]
    token_ids: list[int]  # one for each sequence that sampled
    logprobs: LogProbabilities | None  # those of token_ids; None if no sequence wants them
    prompt_logprobs: list[tuple[Span, LogProbabilities]]  # row i of a span: that of the token after its i-th


class PendingForward:
    """Results that a forward computes and that are copied to the host."""

    def __init__(self, readback: Readback, sampled: list[Sequence], rows: list[int], has_logprobs: bool, scored: list[Span]):
        self._readback, self._sampled, self._rows, self._has_logprobs, self._scored = readback, sampled, rows, has_logprobs, scored

    def wait(self) -> ForwardResult:
        """Wait for them; to be called once."""
        tokens, *others = self._readback.wait()
        logprobs = LogProbabilities(*(array[self._rows] for array in others[:4])) if self._has_logprobs else None
        prompt_logprobs, row = [], 0
        for span in self._scored:
            prompt_logprobs.append((span, LogProbabilities(*(array[row : row + span.length] for array in others[-4:]))))
            row += span.length
        return ForwardResult(self._sampled, tokens[self._rows].tolist(), logprobs, prompt_logprobs)
