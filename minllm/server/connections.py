"""Connections of clients that vanish without a word, or do not read: they are closed, and their requests end as if the client had left."""

import asyncio
import functools
import re
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

UPGRADE = re.compile(rb"(?<=\r\n)(?=upgrade:)", re.IGNORECASE)


class ImpatientProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with a limit of `seconds` to send the head of a request, and to read what has been written.

    Offers of another protocol are ignored: for one of them, httptools would drop the body. Java's client offers HTTP/2 by default.
    """

    def __init__(self, *arguments: Any, seconds: float, **named: Any):
        super().__init__(*arguments, **named)
        self._seconds = seconds
        self._head: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._is_in_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self._head = self.loop.call_later(self._seconds, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Take a part of a request, without the offer of another protocol if it is in the head's first part."""
        if not self._is_in_body:
            head, end, rest = data.partition(b"\r\n\r\n")
            data = UPGRADE.sub(b"ignored-", head) + end + rest
        super().data_received(data)

    def on_message_begin(self) -> None:
        """Wait for the head of another request."""
        super().on_message_begin()
        if self._head is None:
            self._head = self.loop.call_later(self._seconds, self.transport.abort)

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._is_in_body = True
        self._head = cancelled(self._head)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body is complete."""
        self._is_in_body = False
        super().on_message_complete()

    def pause_writing(self) -> None:
        """The client reads more slowly than the model writes."""
        super().pause_writing()
        self._unread = self.loop.call_later(self._seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._unread = cancelled(self._unread)
        super().resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """Nothing more to wait for."""
        self._head, self._unread = cancelled(self._head), cancelled(self._unread)
        super().connection_lost(error)


def cancelled(timer: asyncio.TimerHandle | None) -> None:
    """Cancel a timer, if there is one."""
    if timer is not None:
        timer.cancel()


def protocol(seconds: float) -> Any:
    """The class for uvicorn."""
    return functools.partial(ImpatientProtocol, seconds=seconds)
