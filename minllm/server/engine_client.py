"""The server's side of the socket: sends requests to the engine, and hands its updates to those who wait for them."""

import asyncio
import itertools
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from minllm import errors
from minllm.errors import EngineDeadError
from minllm.server.frames import BUFFER_BYTES, encoded, messages, packed
from minllm.server.wire import EngineRequest, Failure, Update

AT_ONCE = 32  # updates that are handed over in one turn of the event loop: more would delay everything else in it


class EngineClient:
    """One connection to an engine. Used in one event loop."""

    def __init__(self):
        self.card: dict[str, Any] = {}
        self.death: EngineDeadError | None = None
        self.on_frame: Callable[[int], None] = lambda tokens: None  # called with the tokens that a frame tells of, prompts' included
        self._numbers = itertools.count()
        self._jobs: dict[int, tuple[Job, int]] = {}
        self._calls: dict[int, asyncio.Future] = {}
        self._outgoing: list[Any] = []
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task | None = None
        self._ready: asyncio.Future | None = None

    async def connect(self, connection: socket.socket, options: dict[str, Any] | None = None) -> None:
        """Wait until the engine is ready. options: those of a new engine's process. Raises the error of an engine that cannot start."""
        reader, self._writer = await asyncio.open_connection(sock=connection, limit=BUFFER_BYTES)
        if options is not None:
            self._writer.write(packed(options))
        self._ready = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read(reader))
        self.card = await self._ready

    def submit(self, requests: list[EngineRequest]) -> "Job":
        """Send requests, whose updates come through one Job. Raises EngineDeadError."""
        self.check_alive()
        job = Job(self, [next(self._numbers) for _ in requests])
        for index, (number, request) in enumerate(zip(job.numbers, requests, strict=True)):
            self._send("add", number, request.to_wire())
            self._jobs[number] = job, index
        return job

    async def call(self, name: str, *arguments: Any) -> Any:
        """The reply of one of engine_host.CALLS, or its error."""
        self.check_alive()
        number = next(self._numbers)
        self._calls[number] = asyncio.get_running_loop().create_future()
        self._send(name, number, *arguments)
        try:
            return await self._calls[number]
        finally:
            del self._calls[number]

    def abort(self, numbers: list[int]) -> None:
        """End requests; their blocks are free with the engine's next step."""
        for number in numbers:
            if self._jobs.pop(number, None) is not None and self.death is None:
                self._send("abort", number)

    def check_alive(self) -> None:
        """Raise EngineDeadError if the connection has ended."""
        if self.death is not None:
            raise self.death

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return len(self._jobs)

    def end_all(self, reason: str) -> None:
        """End all requests with EngineDeadError; the engine is not told."""
        failure = Failure("EngineDeadError", reason)
        for job, index in self._jobs.values():
            job.put(index, Update(None, [], True, failure), time.perf_counter())
        self._jobs.clear()

    async def close(self) -> None:
        """End the connection, and with it the engine's process."""
        if self._reading is not None:
            self._reading.cancel()
        if self._writer is not None:
            self._writer.close()
        self._die("The server is shutting down.")

    def _send(self, *message: object) -> None:
        """Queue a message; all messages of a turn of the event loop become one frame."""
        part = encoded(message)
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing.append(part)

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if self.death is None:
            self._writer.write(packed(outgoing))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        async for message in messages(reader):
            if "ready" in message:
                self._ready.set_result(message["ready"])
            elif "failed" in message:
                self._ready.set_exception(as_error(Failure(*message["failed"])))
            else:
                for number, value, failure in message.get("replies", ()):
                    self._reply(number, value, failure)
                await self._hand_over(message["updates"])
        self._die("The engine's process has ended: its output on standard error says why.")

    async def _hand_over(self, updates: list[Any]) -> None:
        received, tokens = time.perf_counter(), 0
        for count, (number, fields) in enumerate(updates, 1):
            if number in self._jobs:
                job, index = self._jobs[number]
                update = Update.from_wire(fields)
                tokens += update.num_tokens
                if update.finished:
                    del self._jobs[number]
                job.put(index, update, received)
            if count % AT_ONCE == 0:
                await asyncio.sleep(0)
        if tokens:
            self.on_frame(tokens)

    def _reply(self, number: int, value: object, failure: object) -> None:
        future = self._calls.get(number)
        if future is None or future.done():
            return
        if failure is None:
            future.set_result(value)
        else:
            future.set_exception(as_error(Failure(*failure)))

    def _die(self, reason: str) -> None:
        if self.death is not None:
            return
        self.death = EngineDeadError(reason)
        for future in [self._ready, *self._calls.values()]:
            if future is not None and not future.done():
                future.set_exception(self.death)
        self.end_all(reason)


class Job:
    """The updates of one or several requests that were submitted together: (index of the request, Update, time of arrival)."""

    def __init__(self, client: EngineClient, numbers: list[int]):
        self.numbers = numbers
        self._client = client
        self._open = len(numbers)
        self._updates: list[tuple[int, Update, float]] = []
        self._arrived = asyncio.Event()

    def put(self, index: int, update: Update, received: float) -> None:
        """Add an update. A reader that is slow gets several at once."""
        self._updates.append((index, update, received))
        self._arrived.set()

    async def take(self) -> list[tuple[int, Update, float]]:
        """The updates since the last call, at least one; an empty list after the last."""
        if not self._updates and self._open:
            self._arrived.clear()
            await self._arrived.wait()
        updates, self._updates = self._updates, []
        self._open -= sum(update.finished for _, update, _ in updates)
        return updates

    async def __aiter__(self) -> AsyncIterator[tuple[int, Update, float]]:
        while updates := await self.take():
            for one in updates:
                yield one

    def close(self) -> None:
        """End the requests that run."""
        self._client.abort(self.numbers)


def as_error(failure: Failure) -> Exception:
    """The exception that the engine reported: of a class of minllm.errors, or MinLLMError for any other."""
    kind = getattr(errors, failure.kind, errors.MinLLMError)
    is_ours = isinstance(kind, type) and issubclass(kind, errors.MinLLMError)
    return kind(failure.message) if is_ours else errors.MinLLMError(f"{failure.kind}: {failure.message}")
