"""From an HTTP request to its answer: access, body, handler, and errors in the form that the client reads.

Whoever sends a body slowly, reads an answer slowly, or leaves, ends their own request and no other.
"""

import asyncio
import contextlib
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import orjson

from minllm.errors import MinLLMError
from minllm.server.access import caller, check_host
from minllm.server.errors import ApiError, error_from
from minllm.server.requests.body import Body, parsed
from minllm.server.server import Server

PATIENCE = 10.0  # seconds until a stream without a first token begins with a comment, so that proxies do not give up
DISCARDED = 16
DEEPEST = 200  # levels; orjson writes 254, of which answers and messages to the engine need a few around a request's values
ROOM = 254 - DEEPEST
COMMENT = b": waiting\n\n"


@dataclass(frozen=True)
class Reply:
    """An answer as a whole."""

    body: Any  # bytes, or a value for JSON
    status: int = 200
    content_type: bytes = b"application/json"
    headers: tuple[tuple[str, str], ...] = ()


class Left(Exception):
    """The client has closed the connection."""


Handler = Callable[[Server, Any, str], Awaitable[Reply | AsyncIterator[bytes]]]
ErrorForm = Callable[[ApiError], dict[str, Any]]


@dataclass(frozen=True)
class Endpoint:
    """An ASGI application for one path.

    handler: from (server, body, caller) to a Reply, or to an iterator of server-sent events. body: its class, None for a GET, whose
    handler gets the parameters of the path instead.
    error_form: an error's JSON. is_open: needs no API key.
    """

    server: Server
    handler: Handler
    body: type[Body] | None = None
    error_form: ErrorForm = ApiError.openai
    is_open: bool = False

    async def __call__(self, scope, receive, send) -> None:
        """Answer one request."""
        with contextlib.suppress(Left):
            await self._answered(scope, receive, send)

    async def _answered(self, scope, receive, send) -> None:
        sender = Sender(send)
        try:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            check_host(headers, self.server.options.hosts)
            who = "" if self.is_open else caller(headers, self.server.options.api_keys)
            given = scope["path_params"] if self.body is None else await self._parsed(await self._data(headers, receive))
            await unless_client_leaves(receive, self._handled(given, who, sender))
        except Left:
            raise
        except Exception as error:  # noqa: BLE001 - every error has an answer
            await sender.fail(reported(error), self.error_form)

    async def _handled(self, given: Body | dict[str, str], who: str, sender: "Sender") -> None:
        answer = await self.handler(self.server, given, who)
        if isinstance(answer, Reply):
            await sender.reply(answer)
            return
        async with contextlib.aclosing(answer) as events:
            await sender.stream(events)

    async def _parsed(self, data: bytes) -> Body:
        """The body of a request. One is parsed per turn of the event loop, as hundreds that come together would hold up all streams."""
        async with self.server.parsing:
            body = parsed(self.body, json_value(data))
            await asyncio.sleep(0)
            return body

    async def _data(self, headers: dict[str, str], receive) -> bytes:
        """The bytes of a body. Raises ApiError if it is too large, too slow, or of another type than JSON."""
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind and kind != "application/json" and not kind.endswith("+json"):
            raise ApiError(f"content-type {kind!r} is not allowed: send application/json.", status=415)
        try:
            async with asyncio.timeout(self.server.options.io_seconds):
                return await read_body(receive, self.server.options.max_body_bytes)
        except TimeoutError:
            raise ApiError(f"The body did not arrive within {self.server.options.io_seconds:g} seconds.", status=408) from None


async def read_body(receive, most: int) -> bytes:
    """A body of at most `most` bytes. Raises ApiError for a larger one.

    Up to DISCARDED times as much is read and dropped first: a client that is still sending would not see the error.
    """
    parts, size = [], 0
    while size <= DISCARDED * most:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Left
        part = message.get("body", b"")
        size += len(part)
        if size <= most:
            parts.append(part)
        else:
            parts.clear()
        if not message.get("more_body"):
            break
    if size > most:
        raise ApiError(f"The body is larger than {most:,} bytes, the most that this server takes: send less.", status=413)
    return b"".join(parts)


def json_value(data: bytes) -> Any:
    """The value of a JSON text. Raises ApiError for other texts, and for nesting that could be read and not be written again."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ApiError(f"The body is not valid JSON in UTF-8: {error}.") from None
    if data.count(b"[") + data.count(b"{") > DEEPEST:
        around = value
        for _ in range(ROOM):
            around = [around]
        try:
            orjson.dumps(around)
        except TypeError:
            raise ApiError(f"The body is nested more than {DEEPEST} levels deep: flatten it.") from None
    return value


async def unless_client_leaves(receive, work: Awaitable[None]) -> None:
    """Await `work`, and cancel it if the client closes the connection meanwhile: then Left is raised."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.create_task(gone())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Left
        await working
    finally:
        leaving.cancel()
        working.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


def reported(error: Exception) -> ApiError:
    """An error for the client. What nobody foresaw is printed here, and hidden there."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, MinLLMError):
        return error_from(error)
    traceback.print_exception(error, file=sys.stderr)
    return ApiError("The server failed with an error of its own; its output on standard error says more.", status=500)


class Sender:
    """Sends an answer. `send` waits for a client that reads slowly; connections.py gives up one that does not read."""

    def __init__(self, send):
        self._send = send
        self._has_begun = False

    async def reply(self, reply: Reply) -> None:
        """Send a whole answer."""
        data = reply.body if isinstance(reply.body, bytes) else orjson.dumps(reply.body, default=tuple, option=orjson.OPT_NON_STR_KEYS)
        headers = [(b"content-type", reply.content_type), (b"content-length", str(len(data)).encode())]
        headers += [(name.encode(), value.encode()) for name, value in reply.headers]
        self._has_begun = True
        await self._send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": data})

    async def stream(self, events: AsyncIterator[bytes]) -> None:
        """Send server-sent events as they come. An error before the first one can still have its own status."""
        first = asyncio.ensure_future(anext(events, b""))
        try:
            done, _ = await asyncio.wait((first,), timeout=PATIENCE)
            if done:
                first.result()  # raises its error
            await self._begin_stream()
            while not done:
                await self._send({"type": "http.response.body", "body": COMMENT, "more_body": True})
                done, _ = await asyncio.wait((first,), timeout=PATIENCE)
            await self._send({"type": "http.response.body", "body": first.result(), "more_body": True})
        finally:
            if not first.done():
                first.cancel()
                await asyncio.gather(first, return_exceptions=True)
        async for event in events:
            await self._send({"type": "http.response.body", "body": event, "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})

    async def _begin_stream(self) -> None:
        self._has_begun = True
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def fail(self, error: ApiError, form: ErrorForm) -> None:
        """Send an error: with its status, or as the last event of a stream that has begun."""
        if not self._has_begun:
            close = (("connection", "close"),) if error.status in (408, 413) else ()  # the rest of the body is not read
            await self.reply(Reply(form(error), error.status, headers=(*error.headers.items(), *close)))
            return
        kind = b"event: error\n" if form is ApiError.anthropic else b""
        data = kind + b"data: " + orjson.dumps(form(error)) + b"\n\n" + (b"" if kind else b"data: [DONE]\n\n")
        await self._send({"type": "http.response.body", "body": data})
