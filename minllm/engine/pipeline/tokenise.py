"""Stage 1: check and tokenise prompts. The tokenizers library releases the GIL, so this overlaps with the other stages."""

from minllm.engine.llm_engine import LLMEngine
from minllm.engine.pipeline.bounded_queue import BoundedQueue
from minllm.engine.pipeline.distinct_queue import DistinctQueue
from minllm.engine.pipeline.request import PipelineRequest
from minllm.errors import as_exception

AT_A_TIME = 16  # prompts taken from the queue per call


class TokeniseStage:
    """Makes the sequences of requests in order of arrival; this order also numbers them for their seeds."""

    def __init__(self, engine: LLMEngine, inbox: BoundedQueue, outbox: BoundedQueue, moved: DistinctQueue):
        self.engine, self.inbox, self.outbox, self.moved = engine, inbox, outbox, moved
        self.is_closed = False

    def run(self) -> None:
        """Work until `close`."""
        while not self.is_closed:
            for request in self.inbox.take(AT_A_TIME):
                if self.is_closed:
                    return
                self._tokenise(request)
                if request.sequences is None:
                    self.moved.add([request])
                else:
                    self.outbox.put(request)

    def close(self) -> None:
        """Let `run` return."""
        self.is_closed = True
        self.inbox.close()
        self.outbox.close()

    def _tokenise(self, request: PipelineRequest) -> None:
        """Make a request's sequences, or set its error."""
        if request.is_aborted:
            return
        try:
            prompt = request.prompt() if callable(request.prompt) else request.prompt
            request.sequences = self.engine.prepare(
                request.request_id, prompt, request.params, priority=request.priority, deadline=request.deadline,
                cache_salt=request.cache_salt, arrival_time=request.arrival_time,
            )  # fmt: skip
        except BaseException as error:  # noqa: BLE001 - whatever it is, it ends this request alone
            request.error = as_exception(error)
