"""Stage 3: tokens become text and outputs, and each goes to its reader, with one wake-up per event loop however many requests moved.

An output is made only for a reader that has read the one before. So a slow reader gets fewer outputs, each with more tokens, and neither
stalls the others nor fills the memory.
"""

from asyncio import AbstractEventLoop
from collections import defaultdict
from collections.abc import Callable

from minllm.engine.pipeline.distinct_queue import DistinctQueue
from minllm.engine.pipeline.request import Abort, PipelineRequest, Reader, Result

Deliveries = list[tuple[Reader, Result]]


class DetokeniseStage:
    """forget: called with each request that has ended, before its last output is delivered."""

    def __init__(self, inbox: DistinctQueue, abort: Abort, forget: Callable[[PipelineRequest], None]):
        self.inbox, self._abort, self._forget = inbox, abort, forget

    def run(self) -> None:
        """Work until `close`."""
        while (requests := self.inbox.take()) is not None:
            by_loop: dict[AbstractEventLoop | None, list[PipelineRequest]] = defaultdict(list)
            deliveries: dict[AbstractEventLoop | None, Deliveries] = defaultdict(list)
            for request in requests:
                is_last = request.is_finished
                if request.reader.wants(is_last):
                    deliveries[request.reader.loop].append((request.reader, self._result(request)))
                    by_loop[request.reader.loop].append(request)
                if is_last or request.error is not None:
                    self._forget(request)
            for loop, delivered in deliveries.items():
                if not hand_over(loop, delivered):
                    for request in by_loop[loop]:
                        self._abort(request)

    def close(self) -> None:
        """Let `run` return once the queue is empty."""
        self.inbox.close()

    def _result(self, request: PipelineRequest) -> Result:
        """The request's output; if its text cannot be made, the request ends with that error."""
        try:
            return request.result()
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends this request alone
            request.error = error
            self._abort(request)
            return error


def hand_over(loop: AbstractEventLoop | None, delivered: Deliveries) -> bool:
    """Give readers their results, in their event loop's thread. False if the loop is closed."""
    if loop is None:
        _receive(delivered)
        return True
    try:
        loop.call_soon_threadsafe(_receive, delivered)
    except RuntimeError:
        return False
    return True


def _receive(delivered: Deliveries) -> None:
    for reader, result in delivered:
        reader.receive(result)
