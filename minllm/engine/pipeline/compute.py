"""Stage 2: the engine's loop. This thread alone touches the scheduler, the cache and the device."""

from collections import deque
from collections.abc import Iterable

from minllm.engine.core import EngineCore
from minllm.engine.pipeline.bounded_queue import BoundedQueue
from minllm.engine.pipeline.distinct_queue import DistinctQueue
from minllm.engine.pipeline.request import PipelineRequest
from minllm.engine.requests.sequence import Sequence
from minllm.errors import as_exception

MOST_WAITING = 4096  # sequences in the scheduler's queue; further requests wait in the queue before this stage


class ComputeStage:
    """Steps while there is work, takes new requests and aborts between steps, and sleeps if there is nothing to do."""

    def __init__(self, core: EngineCore, inbox: BoundedQueue, moved: DistinctQueue):
        self.core, self.inbox, self.moved = core, inbox, moved
        self.is_closed = False
        self._requests: dict[str, PipelineRequest] = {}  # requests that were added and have not ended
        self._aborts: deque[PipelineRequest] = deque()

    def run(self) -> None:
        """Work until `close`; then all requests are aborted. While there are requests, it is this thread's turn to use the engine."""
        self.core.runner.use_in_this_thread()
        while not self.is_closed:
            arrived = self._arrived(wait=True)
            with self.core.turn.held():
                self._admit(arrived)
                while self.core.has_work and not self.is_closed:
                    self._report(self.core.step())
                    self._admit(self._arrived(wait=False))
        with self.core.turn.held():
            for request in self._requests.values():
                self.core.abort(request.begun)

    def abort(self, request: PipelineRequest) -> None:
        """End a request before the next step, or when it arrives here."""
        request.is_aborted = True
        self._aborts.append(request)
        self.inbox.wake()

    def close(self) -> None:
        """Let `run` return after the current step."""
        self.is_closed = True
        self.inbox.close()

    def _arrived(self, wait: bool) -> list[PipelineRequest]:
        """New requests, as many as there is room for."""
        return self.inbox.take(max(0, MOST_WAITING - self.core.scheduler.queues.num_waiting), wait)

    def _admit(self, requests: list[PipelineRequest]) -> None:
        """Admit new requests, after aborts, because a new request may have the id of an aborted one."""
        self._take_aborts()
        for request in requests:
            if request.is_aborted:
                self._end_unseen(request)
                continue
            try:
                self.core.add(request.begun[0])
                self._requests[request.request_id] = request
                self.core.turn.ends_soon = False
            except BaseException as error:  # noqa: BLE001 - a request that can never fit, for example; the others go on
                request.error = as_exception(error)
                self._pass_on([request])

    def _take_aborts(self) -> None:
        """End aborted requests. Requests that have not arrived yet end when they arrive; requests that have ended are skipped."""
        while self._aborts:
            request = self._aborts.popleft()
            if self._requests.get(request.request_id) is request:
                del self._requests[request.request_id]
                self.core.abort(request.begun)
                self._pass_on([request])

    def _end_unseen(self, request: PipelineRequest) -> None:
        """End a request that was aborted before the scheduler saw it."""
        for sequence in request.begun:
            sequence.abort()
        self._pass_on([request])

    def _report(self, moved: list[Sequence]) -> None:
        """Pass the requests that have ended, or have new tokens to show, to the next stage."""
        requests: dict[PipelineRequest, None] = {}
        for sequence in moved:
            request = self._requests.get(sequence.request_id)
            if request is None:  # it was aborted
                continue
            if sequence.finish_reason is not None and request.is_finished:
                del self._requests[sequence.request_id]
            elif request.final_only:
                continue
            requests[request] = None
        if requests:
            self._pass_on(requests)

    def _pass_on(self, requests: Iterable[PipelineRequest]) -> None:
        """Give requests to the next stage. A user who then has the last output may use the LLM: its call waits for this thread."""
        self.core.turn.ends_soon = not self._requests
        self.moved.add(requests)
