"""Stage 3: turn tokens into text and outputs for their readers, with one wake-up per event loop for all requests with new tokens.

An output is made only for a reader that has read the previous one. So a slow reader gets fewer outputs, each with more tokens, and neither
stalls the others nor fills the memory.

Python runs one thread at a time. An event loop that wakes 256 readers holds the interpreter for milliseconds, during which the compute
stage cannot launch the next step. So after each round this stage sleeps three times as long as the round and the readers took: outputs take
at most a quarter of the time, and with few readers the sleep is shorter than a step.
"""

import time
from asyncio import AbstractEventLoop
from collections import defaultdict
from collections.abc import Callable
from threading import Event

from minllm.engine.pipeline.distinct_queue import DistinctQueue
from minllm.engine.pipeline.request import Abort, PipelineRequest, Result
from minllm.errors import as_exception

REST = 3  # seconds of sleep per second of a round
LONGEST_REST = 0.02  # seconds; also the longest wait for an event loop that does not respond
Deliveries = list[tuple[PipelineRequest, Result]]


class DetokeniseStage:
    """Makes and delivers outputs. forget: called with each request that has ended, before its last output is delivered."""

    def __init__(self, inbox: DistinctQueue, abort: Abort, forget: Callable[[PipelineRequest], None]):
        self.inbox, self._abort, self._forget = inbox, abort, forget

    def run(self) -> None:
        """Work until `close`."""
        while (requests := self.inbox.take()) is not None:
            start = time.perf_counter()
            deliveries: dict[AbstractEventLoop | None, Deliveries] = defaultdict(list)
            for request in requests:
                is_last = request.is_finished
                if request.reader.wants(is_last):
                    deliveries[request.reader.loop].append((request, self._result(request)))
                if is_last or request.error is not None:
                    self._forget(request)
            self._deliver(deliveries)
            time.sleep(min(LONGEST_REST, REST * (time.perf_counter() - start)))

    def close(self) -> None:
        """Let `run` return once the queue is empty."""
        self.inbox.close()

    def _deliver(self, deliveries: dict[AbstractEventLoop | None, Deliveries]) -> None:
        """Give readers their results, and wait until they have run. Requests with a closed event loop are aborted."""
        answers = []
        for loop, delivered in deliveries.items():
            answers.append(Event())
            if not hand_over(loop, delivered, answers[-1].set):
                answers.pop()
                for request, _ in delivered:
                    self._abort(request)
        for answer in answers:
            answer.wait(LONGEST_REST)

    def _result(self, request: PipelineRequest) -> Result:
        """The request's output; if its text cannot be made, the request ends with that error."""
        try:
            return request.result()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it ends this request alone
            request.error = as_exception(error)
            self._abort(request)
            return request.error


def hand_over(loop: AbstractEventLoop | None, delivered: Deliveries, answer: Callable[[], None] = lambda: None) -> bool:
    """Give readers their results, in their event loop's thread, then call `answer` there. False if the loop is closed."""

    def receive() -> None:
        for request, result in delivered:
            request.reader.receive(result)
        if loop is None:
            answer()
        else:
            loop.call_soon(answer)  # runs after the tasks that were woken

    if loop is None:
        receive()
        return True
    try:
        loop.call_soon_threadsafe(receive)
    except RuntimeError:
        return False
    return True
