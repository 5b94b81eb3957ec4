"""Server-sent events."""

import orjson

DONE = b"data: [DONE]\n\n"


def event(data: object, name: str | None = None) -> bytes:
    """One event with JSON data."""
    head = b"data: " if name is None else b"event: " + name.encode() + b"\ndata: "
    return head + orjson.dumps(data) + b"\n\n"
