"""Stage 1: check and tokenise prompts, in order of arrival.

A library cannot be interrupted within a text. So a thread that takes longer than PATIENCE over one request is left to it, and another
thread takes over the queue: no request waits longer than that for another one's text. After the request's own deadline, or after
ENCODING_SECONDS, the slow request ends with DeadlineError, and what its thread finds later is dropped. Texts are never cut.
"""

import threading
import time
from dataclasses import dataclass

from minllm.engine.llm_engine import LLMEngine
from minllm.engine.pipeline.bounded_queue import BoundedQueue
from minllm.engine.pipeline.distinct_queue import DistinctQueue
from minllm.engine.pipeline.request import PipelineRequest
from minllm.engine.requests.sequence import Sequence
from minllm.errors import DeadlineError, as_exception

PATIENCE = 0.1  # seconds over one request, after which another thread takes over the queue
ENCODING_SECONDS = 10.0  # for one request
MOST_THREADS = 32  # further ones wait: each slow text occupies a core


@dataclass(eq=False)
class Encoding:
    """A request that a thread works on."""

    request: PipelineRequest
    begun: float  # time.perf_counter()
    is_slow: bool = False  # another thread has taken over the queue
    is_done: bool = False

    def is_given_up(self, now: float) -> bool:
        """Whether its time is over, or nobody waits for it any more."""
        own = self.request.deadline
        is_late = isinstance(own, int | float) and now > self.request.arrival_time + own
        return is_late or self.request.is_aborted or now > self.begun + ENCODING_SECONDS


class TokeniseStage:
    """Makes the sequences of requests in threads of its own, which `run` watches."""

    def __init__(self, engine: LLMEngine, inbox: BoundedQueue, outbox: BoundedQueue, moved: DistinctQueue):
        self.engine, self.inbox, self.outbox, self.moved = engine, inbox, outbox, moved
        self._open: set[Encoding] = set()  # those without a result
        self._newest: Encoding | None = None  # that of the thread which takes requests
        self._num_threads = 0
        self._lock = threading.Lock()
        self._is_busy, self._is_over = threading.Event(), threading.Event()
        self._failure: BaseException | None = None  # why a thread ended

    def run(self) -> None:
        """Work until `close`."""
        worker = self._start()
        while not self._is_over.is_set():
            self._is_busy.wait()
            self._is_over.wait(PATIENCE / 2)
            now = time.perf_counter()
            if self._is_stuck(now):
                worker = self._start()
            for encoding in [one for one in list(self._open) if one.is_given_up(now)]:
                reason = f"Request {encoding.request.request_id} was not tokenised before its deadline: shorten its text."
                self._settle(encoding, None if encoding.request.is_aborted else DeadlineError(reason))
        if self._failure is not None:
            raise self._failure
        worker.join(PATIENCE)

    def close(self) -> None:
        """Let `run` return."""
        self._is_over.set()
        self.inbox.close()
        self.outbox.close()
        self._is_busy.set()

    def _start(self) -> threading.Thread:
        self._num_threads += 1
        thread = threading.Thread(target=self._work, name="minllm-tokenise", daemon=True)
        thread.start()
        return thread

    def _is_stuck(self, now: float) -> bool:
        """Whether another thread is to take over the queue."""
        with self._lock:
            newest = self._newest
            if newest is None or newest.is_done:
                if not self._open and not self._is_over.is_set():
                    self._is_busy.clear()
                return False
            newest.is_slow = newest.is_slow or (now > newest.begun + PATIENCE and self._num_threads < MOST_THREADS)
            if newest.is_slow:
                self._newest = None
            return newest.is_slow

    def _work(self) -> None:
        """Tokenise requests until `close`, or until another thread has taken over."""
        try:
            while not self._is_over.is_set():
                for request in self.inbox.take(1):
                    encoding = self._begin(request)
                    found = self._tokenise(request)
                    with self._lock:
                        encoding.is_done = True
                    self._settle(encoding, found)
                    if encoding.is_slow:
                        self._num_threads -= 1
                        return
        except BaseException as error:  # noqa: BLE001 - `run` raises it
            self._failure = error
            self._is_over.set()
            self._is_busy.set()

    def _begin(self, request: PipelineRequest) -> Encoding:
        encoding = Encoding(request, time.perf_counter())
        with self._lock:
            self._open.add(encoding)
            self._newest = encoding
            if not self._is_busy.is_set():
                self._is_busy.set()
        return encoding

    def _settle(self, encoding: Encoding, found: list[Sequence] | Exception | None) -> None:
        """Pass a request on with its sequences, or with the error that ends it; does nothing if this has happened."""
        with self._lock:
            if encoding not in self._open:
                return
            self._open.remove(encoding)
        request = encoding.request
        if isinstance(found, list):
            request.sequences = found
            self.outbox.put(request)
        else:
            request.error = found
            self.moved.add([request])

    def _tokenise(self, request: PipelineRequest) -> list[Sequence] | Exception | None:
        """A request's sequences, or its error; None if it was aborted."""
        if request.is_aborted:
            return None
        try:
            prompt = request.prompt() if callable(request.prompt) else request.prompt
            return self.engine.prepare(
                request.request_id, prompt, request.params, priority=request.priority, deadline=request.deadline,
                cache_salt=request.cache_salt, arrival_time=request.arrival_time,
            )  # fmt: skip
        except BaseException as error:  # noqa: BLE001 - whatever it is, it ends this request alone
            return as_exception(error)
