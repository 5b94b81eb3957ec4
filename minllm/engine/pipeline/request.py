"""A request in the pipeline, and the interface of its reader."""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from minllm.engine.requests.completions import output_of
from minllm.engine.requests.outputs import CompletionOutput, RequestMetrics, RequestOutput
from minllm.engine.requests.sampling_params import SamplingParams
from minllm.engine.requests.sequence import Sequence

Result = RequestOutput | Exception  # an exception if the request was refused or its text cannot be made


class Reader(Protocol):
    """Reads the outputs of one request."""

    @property
    def loop(self) -> AbstractEventLoop | None:
        """The event loop that calls `receive`; None: any thread may call it."""

    def wants(self, is_last: bool) -> bool:
        """Whether the reader takes the request's present output now; True for the last one."""

    def receive(self, result: Result) -> None:
        """Take the request's newest output, or the error that ends it."""


@dataclass(eq=False)
class PipelineRequest:
    """The arguments of a request, and its sequences once they are made.

    prompt: a prompt, or a function that makes one in the first stage. arrival_time: by time.perf_counter(). deadline: seconds from
    arrival_time. final_only: only the last output is made.
    """

    request_id: str
    prompt: object
    params: SamplingParams | None
    reader: Reader
    arrival_time: float
    priority: int = 0
    deadline: float | None = None
    cache_salt: str | None = None
    final_only: bool = False
    sequences: list[Sequence] | None = None  # None until the prompt is tokenised
    error: Exception | None = None  # the error that ended it before it had sequences, or while its text was made
    is_aborted: bool = False

    @property
    def begun(self) -> list[Sequence]:
        """The sequences; none until the prompt is tokenised."""
        return self.sequences or []

    @property
    def is_finished(self) -> bool:
        """Whether no more tokens will come."""
        if self.error is not None or self.sequences is None:
            return self.error is not None or self.is_aborted
        return all(sequence.finish_reason is not None for sequence in self.sequences)

    def result(self) -> Result:
        """The output so far, or the error that ended the request."""
        if self.error is not None:
            return self.error
        return self._output_without_tokens() if self.sequences is None else output_of(self.sequences)

    def _output_without_tokens(self) -> RequestOutput:
        """The output of a request that was aborted before its prompt was tokenised."""
        prompt = self.prompt if isinstance(self.prompt, str) else None
        completion = CompletionOutput(0, "", [], None, None, "abort", None)
        return RequestOutput(self.request_id, prompt, [], [completion], True, RequestMetrics(0, 0, None, 0.0, None))


Abort = Callable[[PipelineRequest], None]
