"""`minllm serve`: an OpenAI-compatible server. Its options are those of ServerOptions and of the engine."""

import dataclasses
import importlib.util
import sys
from typing import Annotated, Any

import typer

from minllm.cli.options import LLM_OPTIONS, MEANINGS, engine, engine_options, flag, option, takes
from minllm.cli.terminal import user_errors
from minllm.engine.option_help import meanings
from minllm.errors import InvalidOptionError
from minllm.server.options import ServerOptions

NEEDED = ("starlette", "uvicorn", "uvloop", "httptools", "orjson", "pydantic", "prometheus_client")
LISTS = {"api_keys": "--api-key", "allowed_hosts": "--allowed-host"}
SHARED = [name for name in LLM_OPTIONS if name not in ("model", "enable_prefix_caching")]
SIZES = "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "kv_cache_memory_bytes", "load_format"


def server_options() -> list:
    """An option of the command line for each field of ServerOptions."""
    texts, found = meanings(ServerOptions), []
    for field in dataclasses.fields(ServerOptions):
        kind = list[str] | None if field.name in LISTS else field.type
        more = {"envvar": "MINLLM_API_KEY", "show_envvar": True} if field.name == "api_keys" else {}
        name = LISTS.get(field.name, flag(field.name))
        declared = Annotated[kind, typer.Option(name, help=texts.get(field.name, ""), **more)]
        found.append(option(field.name, declared, None if field.name in LISTS else field.default))
    return found


@takes(server_options(), engine(*SHARED, enable_prefix_caching=True), engine(*SIZES))
def serve(model: Annotated[str | None, typer.Argument(metavar="[MODEL]", help=MEANINGS["model"])] = None, **options: Any) -> None:
    """Serve a model over HTTP: OpenAI's completions, chat and responses, Anthropic's messages, and a page to chat on."""
    with user_errors():
        if sys.platform == "win32":
            raise InvalidOptionError("minllm serve runs on Linux and macOS: on Windows, use it in WSL.")
        missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            raise InvalidOptionError(
                f"minllm serve needs {', '.join(missing)}: in a clone of the repository, pip install --editable '.[serve]' brings them."
            )
        from minllm.server.run import run

        fields = {field.name: options.pop(field.name) for field in dataclasses.fields(ServerOptions)}
        fields |= {name: tuple(fields[name] or ()) for name in LISTS}
        shares = options["kv_cache_policy"] == "paged" and not options["kv_window"] and options["kv_cache_dtype"] != "kivi_int4"
        options |= dict(model=model, enable_prefix_caching=options["enable_prefix_caching"] and shares)
        run(ServerOptions(**fields), engine_options(options), announce)


def announce(server, address: str) -> None:
    """Say on standard error where the server is, and how to use it."""
    path, field = "chat/completions", '"messages": [{"role": "user", "content": "Hello"}]'
    if not server.card["has_chat_template"]:
        path, field = "completions", '"prompt": "def fibonacci(n):", "max_tokens": 64'
    key = " -H 'authorization: Bearer KEY'" if server.options.api_keys else ""
    print(
        f"{server.model_name} is served on {address} ({server.card['device']}). Ctrl-C ends it. Try:\n"
        f"  curl {address}/v1/{path}{key} -H 'content-type: application/json' -d '{{{field}}}'\n"
        f"  or the page {address}/ in a browser",
        file=sys.stderr, flush=True,
    )  # fmt: skip
