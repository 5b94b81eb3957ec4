"""The generated parts of the pages on the server: its options, and the fields of its API, from the classes that check them."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

WORDS = {"string": "text", "number": "number", "integer": "integer", "boolean": "true or false", "object": "object"}
SHARED = "SamplingFields", "RequestFields"  # shown once, in this order


def options() -> str:
    """The options of the server."""
    from minllm.cli.generation_options import flag
    from minllm.cli.serve import LISTS
    from minllm.engine.option_help import meanings
    from minllm.server.options import ServerOptions

    texts, lines = meanings(ServerOptions), ["| option | default | meaning |", "| --- | --- | --- |"]
    for field in dataclasses.fields(ServerOptions):
        default = "" if field.default in (None, ()) else f"{field.default}".lower() if isinstance(field.default, bool) else field.default
        lines.append(f"| `{LISTS.get(field.name, flag(field.name))}` | {default} | {escaped(texts[field.name])} |")
    return "\n".join(lines)


def fields() -> str:
    """The fields of every path's body, those of several paths once."""
    from minllm.server.paths import PATHS
    from minllm.server.requests.sampling import RequestFields, SamplingFields

    shared = [
        section("Fields of completions and chat completions", SamplingFields, RequestFields),
        section("Fields of all requests that generate", RequestFields),
    ]
    own = []
    for one in PATHS:
        if one.body is None:
            own.append(f"## {one.method} {one.path}\n\n{one.handler.__doc__}")
        else:
            bases = [base for base in one.body.__mro__ if base.__name__ in SHARED]
            own.append(section(f"{one.method} {one.path}", one.body, *bases, text=one.handler.__doc__))
    return "\n\n".join([*own, *shared])


def section(title: str, kind: Any, *without: Any, text: str = "") -> str:
    """A heading and a table of a body's fields. without: classes whose fields are left out."""
    properties, required = kind.model_json_schema()["properties"], kind.model_json_schema().get("required", ())
    known = {name for base in without for name in base.model_fields}
    rows = []
    for name, field in properties.items():
        default, meaning = "required" if name in required else shown(field.get("default")), field["description"]
        if name not in known:
            rows.append(f"| `{name}` | {typed(field)} | {default} | {escaped(meaning[0].upper() + meaning[1:])} |")
    lines = [f"## {title}", "", *([text, ""] if text else []), "| field | type | default | meaning |", "| --- | --- | --- | --- |", *rows]
    refused = {name: allowed for name, allowed in kind.REFUSED.items() if not any(name in base.REFUSED for base in without)}
    lines += ["", "Refused:", "", *[f"- `{name}`: {escaped(allowed)}." for name, allowed in refused.items()]] if refused else []
    links = {"SamplingFields": "fields-of-completions-and-chat-completions", "RequestFields": "fields-of-all-requests-that-generate"}
    if without:
        lines += ["", f"And [those of others](#{links[without[0].__name__]})."]
    return "\n".join(lines)


def typed(field: dict[str, Any]) -> str:
    """The type of a field, in words."""
    if "anyOf" in field:
        return " or ".join(typed(one) for one in field["anyOf"] if one.get("type") != "null")
    if field.get("type") == "array":
        return f"list of {typed(field['items'])}"
    return WORDS[field["type"]]


def shown(default: Any) -> str:
    """A default as JSON has it."""
    return "" if default is None else str(default).lower()


def escaped(text: str) -> str:
    """A text within a cell of a table."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def metrics() -> str:
    """The metrics."""
    from minllm.server.metrics import Metrics

    lines = ["| metric | type | meaning |", "| --- | --- | --- |"]
    for one in Metrics("model", 1).registry.collect():
        lines.append(f"| `{one.name}` | {one.type} | {escaped(one.documentation)} |")
    return "\n".join(lines)


def statuses() -> str:
    """The status codes of errors."""
    from minllm.server.openapi import ERRORS

    return "\n".join(["| status | meaning |", "| --- | --- |", *(f"| {status} | {meaning} |" for status, meaning in ERRORS.items())])
