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

    def __init__(self, has_moved: Callable[[], None], abort: Callable[[], None], on_output: "Callable[[OutputStream], None] | None" = None):
        """has_moved: requests the next output from the pipeline. abort: ends the request.

        on_output: called in the event loop with this stream whenever `take` has something new.
        """
        self.loop = asyncio.get_running_loop()
        self._has_moved, self._abort, self._on_output = has_moved, abort, on_output
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
        if self._on_output is not None:
            self._on_output(self)

    def take(self) -> RequestOutput | None:
        """The newest output if it is unread, else None. After the last one, raises the request's error or StopAsyncIteration."""
        if self._output is not None:
            output, self._output = self._output, None
            self._mark_read()
            return output
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._is_over:
            raise StopAsyncIteration
        return None

    async def __anext__(self) -> RequestOutput:
        while (output := self.take()) is None:
            self._received.clear()
            await self._received.wait()
        return output

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
