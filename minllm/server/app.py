"""The ASGI application: an endpoint for every path, errors of other paths, and the event loop's lag."""

import asyncio
import contextlib
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from minllm.server.endpoint import Endpoint
from minllm.server.errors import ApiError
from minllm.server.openapi import openapi
from minllm.server.paths import PATHS
from minllm.server.server import Server

LAG_SECONDS = 0.02  # between two measurements of the event loop


class NameConvertor(PathConvertor):
    """A parameter that is not empty: /v1/models/ leads to /v1/models."""

    regex = ".+"


register_url_convertor("name", NameConvertor())


def make_app(server: Server) -> Starlette:
    """The application of a server whose engine runs."""
    routes = [
        Route(one.route, Endpoint(server, one.handler, one.body, one.error_form, one.is_open), methods=[one.method]) for one in PATHS
    ]  # fmt: skip
    routes.append(Route("/openapi.json", Endpoint(server, openapi, is_open=True), methods=["GET"]))
    return Starlette(routes=routes, exception_handlers={HTTPException: unknown_path}, lifespan=measuring_lag(server))


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
