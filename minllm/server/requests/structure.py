"""Which fields say what the whole output must be: OpenAI's response_format, and vLLM's structured_outputs and guided fields."""

from typing import Any

from pydantic import Field

from minllm.engine.requests.structured_outputs import StructuredOutputsParams
from minllm.server.errors import ApiError, refused
from minllm.server.requests.body import Body, parsed

FORMATS = '{"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "json_schema": {"name": ..., "schema": {...}}}'


class StructureFields(Body):
    """The fields; at most one may be given."""

    response_format: dict[str, Any] | None = Field(None, description=f"The form of the text: {FORMATS}.")
    structured_outputs: dict[str, Any] | None = Field(
        None, description="The form of the text, by one of json, regex, choice, grammar and json_object; vLLM's names."
    )
    guided_json: str | dict[str, Any] | None = Field(None, description="As json of structured_outputs.")
    guided_regex: str | None = Field(None, description="As regex of structured_outputs.")
    guided_choice: list[str] | None = Field(None, description="As choice of structured_outputs.")
    guided_grammar: str | None = Field(None, description="As grammar of structured_outputs.")


class StructureBody(Body):
    """The object `structured_outputs`."""

    json_schema: str | dict[str, Any] | None = Field(None, alias="json", description="A JSON schema.")
    regex: str | None = Field(None, description="A regular expression.")
    choice: list[str] | None = Field(None, description="Texts.")
    grammar: str | None = Field(None, description="A grammar in Lark's syntax or in GBNF.")
    json_object: bool | None = Field(None, description="Any JSON object.")
    disable_any_whitespace: bool = Field(False, description="No white space between the tokens of JSON.")
    whitespace_pattern: str | None = Field(None, description="A regular expression of that white space.")


def structure_of(body: StructureFields) -> StructuredOutputsParams | None:
    """What the output must be; None for any text. Raises ApiError for two descriptions, or for a wrong one."""
    found: dict[str, dict[str, Any]] = {}
    if body.structured_outputs is not None:
        given = parsed(StructureBody, body.structured_outputs).model_dump(by_alias=True, exclude_none=True)
        found["structured_outputs"] = given
    for kind in ("json", "regex", "choice", "grammar"):
        if (value := getattr(body, f"guided_{kind}")) is not None:
            found[f"guided_{kind}"] = {kind: value}
    if body.response_format is not None and (given := of_format("response_format", body.response_format)):
        found["response_format"] = given
    if len(found) > 1:
        raise ApiError(f"{' and '.join(found)} are given, and one alone is allowed: leave the others out.", next(iter(found)))
    return next((StructuredOutputsParams(**given) for given in found.values()), None)


def of_format(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of StructuredOutputsParams for a response_format, or for a text.format, which has the schema itself; {} for text."""
    kind, holder = given.get("type"), given.get("json_schema", given)
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_object": True}
    schema = holder.get("schema") if isinstance(holder, dict) else None
    if kind != "json_schema" or not isinstance(schema, dict):
        raise refused(name, given, FORMATS)
    return {"json": schema}
