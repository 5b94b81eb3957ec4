"""The OpenAPI schema, from the table of paths and the classes of their bodies."""

from typing import Any

from minllm.machine.devices import installed_version
from minllm.server.endpoint import Reply
from minllm.server.paths import PATHS, Path
from minllm.server.server import Server

REFERENCE = "#/components/schemas/{model}"
ERRORS = {
    "400": "A field is wrong: `param` names it.", "401": "The API key is missing or wrong.", "404": "The model is not served here.",
    "408": "The body did not arrive in time.", "413": "The body is too large.", "415": "The body is not JSON.",
    "429": "The server is full: Retry-After says when to try again.",
    "503": "The engine's process has ended, or others needed the request's memory.",
    "504": "The deadline has passed.",
}  # fmt: skip


async def openapi(server: Server, parameters: dict[str, str], who: str) -> Reply:
    """The schema of this API."""
    return Reply(schema(installed_version("minllm") or "0"))


def schema(version: str) -> dict[str, Any]:
    """The schema of all paths."""
    definitions: dict[str, Any] = {}
    paths = {one.path: {one.method.lower(): operation(one, definitions)} for one in PATHS}
    return {
        "openapi": "3.1.0", "info": {"title": "minllm", "version": version}, "paths": paths, "components": {"schemas": definitions}
    }  # fmt: skip


def operation(one: Path, definitions: dict[str, Any]) -> dict[str, Any]:
    """A path's operation. definitions: gets the schema of its body."""
    of_get = [*([] if one.is_open else ["401"]), *(["404"] if one.parameters else []), "503"]
    errors = of_get if one.body is None else ERRORS
    answers = {"200": one.content, **dict.fromkeys(errors, ("application/json",))}
    found: dict[str, Any] = {
        "summary": (one.handler.__doc__ or "").strip(), "operationId": one.handler.__name__,
        "responses": {status: answer(status, kinds) for status, kinds in answers.items()},
    }  # fmt: skip
    if one.parameters:
        found["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in one.parameters]
    if one.body is not None:
        body = one.body.model_json_schema(ref_template=REFERENCE)
        definitions |= body.pop("$defs", {})
        definitions[one.body.__name__] = body
        content = {"application/json": {"schema": {"$ref": REFERENCE.format(model=one.body.__name__)}}}
        found["requestBody"] = {"required": True, "content": content}
    return found


def answer(status: str, kinds: tuple[str, ...]) -> dict[str, Any]:
    """An answer with this status. kinds: the types of its content."""
    return {"description": ERRORS.get(status, "The answer."), "content": {kind: {} for kind in kinds}}
