"""GET /health, /version, /v1/models and /metrics: what is served, and how it is doing."""

import asyncio
import contextlib
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST

from minllm.errors import EngineDeadError
from minllm.machine.devices import installed_version
from minllm.server.endpoint import Reply
from minllm.server.server import Server

STATS_SECONDS = 2.0  # for the engine to answer; an older number is better than no metrics


async def health(server: Server, parameters: dict[str, str], who: str) -> Reply:
    """Status 200 while the engine can serve, else 503."""
    server.engine.check_alive()
    return Reply(b"")


async def version(server: Server, parameters: dict[str, str], who: str) -> Reply:
    """minllm's version."""
    return Reply({"version": installed_version("minllm") or "0"})


async def models(server: Server, parameters: dict[str, str], who: str) -> Reply:
    """The one model that is served."""
    return Reply({"object": "list", "data": [model_card(server)]})


async def model(server: Server, parameters: dict[str, str], who: str) -> Reply:
    """The served model, by its name."""
    server.check_model(parameters["model"])
    return Reply(model_card(server))


def model_card(server: Server) -> dict[str, Any]:
    """The served model in OpenAI's form, with vLLM's fields."""
    return {
        "id": server.model_name, "object": "model", "created": server.created, "owned_by": "minllm", "root": server.model_name,
        "parent": None, "max_model_len": server.card["max_model_len"], "has_chat_template": server.card["has_chat_template"],
    }  # fmt: skip


async def metrics(server: Server, parameters: dict[str, str], who: str) -> Reply:
    """Prometheus' format."""
    with contextlib.suppress(TimeoutError, EngineDeadError):
        async with asyncio.timeout(STATS_SECONDS):
            server.metrics.take_engine(await server.engine.client.call("stats"))
    return Reply(server.metrics.text(), content_type=CONTENT_TYPE_LATEST.encode())
