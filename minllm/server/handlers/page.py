"""GET /: the page to chat on."""

import functools
from importlib import resources

from minllm.server.endpoint import Reply
from minllm.server.server import Server

# Nothing but this page and the server itself, whatever a model writes.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = (("content-security-policy", POLICY), ("x-content-type-options", "nosniff"))


async def page(server: Server, parameters: dict[str, str], who: str) -> Reply:
    """The page; it asks for the model and for an API key by itself."""
    return Reply(_html(), content_type=b"text/html; charset=utf-8", headers=HEADERS)


@functools.cache
def _html() -> bytes:
    return resources.files("minllm.server").joinpath("page/chat.html").read_bytes()
