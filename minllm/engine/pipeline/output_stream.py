"""The outputs of a request, as an asynchronous iterator."""

import asyncio
from collections.abc import AsyncIterator, Callable
from threading import Lock

from minllm.engine.pipeline.request import Result
from minllm.engine.requests.outputs import RequestOutput


class OutputStream(AsyncIterator[RequestOutput]):
    """Yields the outputs of a request so far, up to the last one. If the request fails, its error is raised after the last output.

    At most one output is unread; tokens that come meanwhile are part of the next one. Must be read in the event loop in which it was made.
    """

    def __init__(self, has_moved: Callable[[], None], abort: Callable[[], None]):
        """has_moved: requests the next output from the pipeline. abort: ends the request."""
        self.loop = asyncio.get_running_loop()
        self._has_moved, self._abort = has_moved, abort
        self._lock = Lock()
        self._has_unread = False  # an output was made and has not been read
        self._is_behind = False  # tokens came after the unread output
        self._output: RequestOutput | None = None
        self._error: Exception | None = None
        self._is_over = False  # no more results will be received
        self._received = asyncio.Event()

    def wants(self, is_last: bool) -> bool:
        """Whether to make an output now. Called by the pipeline."""
        with self._lock:
            if self._has_unread and not is_last:
                self._is_behind = True
                return False
            self._has_unread = True
            return True

    def receive(self, result: Result) -> None:
        """Take the newest output, or an error that ends the request. Called in the event loop; results after the end are ignored."""
        if self._is_over:
            return
        if isinstance(result, Exception):
            self._error, self._is_over = result, True
        else:
            self._output, self._error, self._is_over = result, result.error, result.finished
        self._received.set()

    async def __anext__(self) -> RequestOutput:
        if self._output is None and not self._is_over:
            self._received.clear()
            await self._received.wait()
        if self._output is not None:
            output, self._output = self._output, None
            self._mark_read()
            return output
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        raise StopAsyncIteration

    def close(self) -> None:
        """End the request if it runs."""
        if not self._is_over:
            self._is_over = True
            self._received.set()
            self._abort()

    def _mark_read(self) -> None:
        with self._lock:
            self._has_unread = False
            is_behind, self._is_behind = self._is_behind, False
        if is_behind and not self._is_over:
            self._has_moved()
