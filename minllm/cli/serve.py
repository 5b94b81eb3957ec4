"""`minllm serve`: an OpenAI-compatible server. Its options are those of ServerOptions and of the engine."""

import dataclasses
import importlib.util
import sys
from typing import Annotated, Any

import typer

from minllm.cli.generation_options import ENGINE_OPTIONS, engine_option, engine_options, flag, option, takes
from minllm.cli.terminal import user_errors
from minllm.engine.option_help import meanings
from minllm.errors import InvalidOptionError
from minllm.server.options import ServerOptions

NEEDED = ("starlette", "uvicorn", "uvloop", "httptools", "orjson", "pydantic", "prometheus_client")
LISTS = {"api_keys": "--api-key", "allowed_hosts": "--allowed-host"}
SIZES = (
    engine_option("max_num_seqs", int, "The most sequences computed together.", default=256),
    engine_option("max_num_batched_tokens", int, "The token budget of a step.", default=2048),
    engine_option("gpu_memory_utilization", float, "The share of the GPU's memory to use in all.", default=0.9),
    engine_option("kv_cache_memory_bytes", int | None, "Bytes for the KV cache; default what the model leaves."),
    engine_option("load_format", str, "auto, or dummy for random weights, to measure speed alone.", "FORMAT", default="auto"),
)


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


@takes(server_options(), [one for one in ENGINE_OPTIONS if one.name not in ("model", "enable_prefix_caching")], SIZES)
def serve(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="Hugging Face directory or GGUF file. Default: the bundled model.")
    ] = None,
    enable_prefix_caching: Annotated[bool, typer.Option(help="Compute what prompts have in common once (paged cache).")] = True,
    **options: Any,
) -> None:
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
        shares = enable_prefix_caching and options["kv_cache_policy"] == "paged" and not options["kv_window"]
        engine = engine_options(options | {"model": model, "enable_prefix_caching": shares and options["kv_cache_dtype"] != "kivi_int4"})
        engine |= {one.name: options[one.name] for one in SIZES}
        run(ServerOptions(**fields), engine, announce)


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
