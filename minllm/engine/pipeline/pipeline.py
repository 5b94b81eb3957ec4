"""The three-stage pipeline: tokenise, compute and detokenise, each on its own thread.

    caller -> [bounded queue] -> tokenise -> [bounded queue] -> compute -> [distinct queue] -> detokenise -> reader

While the device computes a step, the host tokenises newly arrived prompts and detokenises the previous step's tokens. A full queue blocks
the stages before it, back to the caller (back-pressure). The last queue holds each request at most once, so compute never waits for
readers.

An error in a stage ends the request that caused it. If a thread itself ends, every request gets EngineDeadError, and so do later ones.
"""

import threading
from collections.abc import Callable

from minllm.engine.llm_engine import LLMEngine
from minllm.engine.pipeline import switch_interval
from minllm.engine.pipeline.bounded_queue import BoundedQueue
from minllm.engine.pipeline.compute import ComputeStage
from minllm.engine.pipeline.detokenise import DetokeniseStage, hand_over
from minllm.engine.pipeline.distinct_queue import DistinctQueue
from minllm.engine.pipeline.request import PipelineRequest
from minllm.engine.pipeline.tokenise import TokeniseStage
from minllm.errors import EngineDeadError, InvalidRequestError

QUEUE_LIMIT = 256  # capacity of the queues before stages 1 and 2, in requests


class Pipeline:
    """Runs requests on a loaded model until `shutdown`. Any thread may call."""

    def __init__(self, engine: LLMEngine, queue_limit: int = QUEUE_LIMIT):
        self.prompts: BoundedQueue[PipelineRequest] = BoundedQueue(queue_limit)
        sequences: BoundedQueue[PipelineRequest] = BoundedQueue(queue_limit)
        self.moved: DistinctQueue[PipelineRequest] = DistinctQueue()
        self.tokenise = TokeniseStage(engine, self.prompts, sequences, self.moved)
        self.compute = ComputeStage(engine.core, sequences, self.moved)
        self.detokenise = DetokeniseStage(self.moved, self.compute.abort, self._forget)
        self._requests: dict[str, PipelineRequest] = {}
        self._turn = engine.core.turn
        self._lock = threading.Lock()
        self._cause: BaseException | None = None  # why a thread ended
        self._is_over = False
        switch_interval.shorten()
        self._threads = [self._start(stage) for stage in (self.tokenise, self.compute, self.detokenise)]

    def admit(self, request: PipelineRequest, callback: Callable[[], None]) -> bool:
        """Queue a request. False if there is no room: then `callback` is called once it is queued or the pipeline has ended.

        Raises InvalidRequestError if its id is in use, EngineDeadError if the pipeline has ended.
        """
        self._turn.check_process()
        with self._lock:
            self._check_alive()
            if request.request_id in self._requests:
                raise InvalidRequestError(f"request_id={request.request_id!r} is running already: give every request an id of its own.")
            self._requests[request.request_id] = request
        return self.prompts.put_or_wait(request, callback)

    def find(self, request_id: str) -> PipelineRequest | None:
        """The unfinished request with this id; None if there is none."""
        return self._requests.get(request_id)

    def abort(self, request: PipelineRequest) -> None:
        """End a request before the next step. Does nothing if it has ended."""
        if self._requests.get(request.request_id) is request:
            self.compute.abort(request)

    def check_alive(self) -> None:
        """Raise EngineDeadError if the pipeline has ended, EngineBusyError in a forked process."""
        self._turn.check_process()
        with self._lock:
            self._check_alive()

    def shutdown(self) -> None:
        """End all requests and threads; those that still wait get EngineDeadError. Does nothing again, or in a forked process."""
        if not self._turn.is_here:
            return
        self._end(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _check_alive(self) -> None:
        if self._is_over:
            raise self._death()

    def _death(self) -> EngineDeadError:
        if self._cause is None:
            return EngineDeadError("This engine was shut down: make a new one.")
        error = EngineDeadError(f"The engine ended with {type(self._cause).__name__}: {self._cause}. Make a new one.")
        error.__cause__ = self._cause
        return error

    def _start(self, stage) -> threading.Thread:
        thread = threading.Thread(target=self._run, args=(stage,), name=f"minllm-{type(stage).__name__}", daemon=True)
        thread.start()
        return thread

    def _run(self, stage) -> None:
        try:
            stage.run()
        except BaseException as error:  # noqa: BLE001 - a thread that ends silently would leave everybody waiting
            self._end(error)

    def _end(self, cause: BaseException | None) -> None:
        """Close all stages, and let every request end with EngineDeadError."""
        with self._lock:
            if self._is_over:
                return
            self._is_over, self._cause = True, cause
            requests, self._requests = list(self._requests.values()), {}
        switch_interval.restore()
        for request in requests:  # before compute aborts them, for detokenise may still show that as an output
            hand_over(request.reader.loop, [(request, self._death())])
        for stage in (self.tokenise, self.compute, self.detokenise):
            stage.close()

    def _forget(self, request: PipelineRequest) -> None:
        with self._lock:
            if self._requests.get(request.request_id) is request:
                del self._requests[request.request_id]
