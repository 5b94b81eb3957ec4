"""Frames of JSON on a socket pair, between the server and the process of its engine.

    4 bytes, big endian: the length    that many bytes of JSON

Nothing is pickled: a frame can be read as text, and reading one runs no code.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson

from minllm.errors import InvalidRequestError

HEADER_BYTES = 4
BUFFER_BYTES = 1 << 20  # unread bytes at which a side stops reading from the socket


def encoded(message: object) -> orjson.Fragment:
    """A message as a part of a frame. Raises InvalidRequestError for one that JSON cannot hold."""
    try:
        return orjson.Fragment(_json(message))
    except TypeError as error:
        raise InvalidRequestError(f"The request cannot be passed to the engine: {error}.") from error


def packed(message: object) -> bytes:
    """A message as a frame. Raises OverflowError for 4 GiB or more."""
    body = _json(message)
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def _json(message: object) -> bytes:
    return orjson.dumps(message, default=tuple, option=orjson.OPT_NON_STR_KEYS)  # orjson leaves named tuples to `default`


async def messages(reader: asyncio.StreamReader) -> AsyncIterator[Any]:
    """The messages that arrive, until the other side has ended."""
    while True:
        try:
            length = int.from_bytes(await reader.readexactly(HEADER_BYTES), "big")
            body = await reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        yield orjson.loads(body)
