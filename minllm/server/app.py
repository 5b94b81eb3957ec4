"""The ASGI application: every path and its endpoint."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from minllm.server.endpoint import Endpoint, ErrorForm, Handler
from minllm.server.errors import ApiError
from minllm.server.handlers.chat import chat
from minllm.server.handlers.completions import complete
from minllm.server.handlers.messages import count_tokens, message
from minllm.server.handlers.page import page
from minllm.server.handlers.responses import respond
from minllm.server.handlers.status import health, metrics, models, version
from minllm.server.handlers.tokens import detokenize, tokenize
from minllm.server.requests.body import Body
from minllm.server.requests.chat import ChatBody
from minllm.server.requests.completion import CompletionBody
from minllm.server.requests.messages import MessagesBody, MessagesFields
from minllm.server.requests.responses import ResponsesBody
from minllm.server.requests.tokens import DetokenizeBody, TokenizeBody
from minllm.server.server import Server

LAG_SECONDS = 0.02  # between two measurements of the event loop


class Path(NamedTuple):
    """A path of the API. is_open: needs no API key."""

    path: str
    handler: Handler
    body: type[Body] | None = None
    error_form: ErrorForm = ApiError.openai
    is_open: bool = False

    @property
    def method(self) -> str:
        """GET without a body, POST with one."""
        return "GET" if self.body is None else "POST"


PATHS = (
    Path("/v1/models", models),
    Path("/v1/completions", complete, CompletionBody),
    Path("/v1/chat/completions", chat, ChatBody),
    Path("/v1/responses", respond, ResponsesBody),
    Path("/v1/messages", message, MessagesBody, ApiError.anthropic),
    Path("/v1/messages/count_tokens", count_tokens, MessagesFields, ApiError.anthropic),
    Path("/tokenize", tokenize, TokenizeBody),
    Path("/detokenize", detokenize, DetokenizeBody),
    Path("/", page, is_open=True),
    Path("/health", health, is_open=True),
    Path("/version", version, is_open=True),
    Path("/metrics", metrics, is_open=True),
)


def make_app(server: Server, lifespan: Callable | None = None) -> Starlette:
    """The application of a server whose engine runs."""
    routes = [
        Route(one.path, Endpoint(server, one.handler, one.body, one.error_form, one.is_open), methods=[one.method]) for one in PATHS
    ]  # fmt: skip
    return Starlette(routes=routes, exception_handlers={HTTPException: unknown_path}, lifespan=lifespan or measuring_lag(server))


async def unknown_path(request: Request, error: HTTPException) -> JSONResponse:
    """The error of a path or a method that does not exist."""
    known = ", ".join(f"{one.method} {one.path}" for one in PATHS)
    message = f"{request.method} {request.url.path} is not served here: {known} are."
    return JSONResponse(ApiError(message, status=error.status_code).openai(), error.status_code, headers=error.headers)


def measuring_lag(server: Server) -> Callable:
    """A lifespan during which the event loop's lag is measured."""

    async def measure() -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_SECONDS
            await asyncio.sleep(LAG_SECONDS)
            server.metrics.loop_lag.observe(max(0.0, loop.time() - due))

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette):
        measuring = asyncio.create_task(measure())
        yield
        measuring.cancel()

    return lifespan
