"""Grammars of texts that call tools, in the model's own format, so that its reader finds the calls."""

import json
from typing import Any

from minllm.server.tool_calls.formats import FORMATS, Format

# As json.dumps writes, and templates show it: a model that is unsure could write spaces until max_tokens.
WHITE_SPACE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

OF_DATA = ("const", "enum", "default", "examples")  # keywords of JSON Schema with values that are no schemas
OF_NAMES = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")  # with a schema for each name


def call_grammar(form: Format, functions: list[dict[str, Any]], is_one: bool) -> str:
    """In llguidance's syntax. functions: those that may be called. is_one: exactly one call, else at least one."""
    begin, end = (json.dumps(text) for text in (f"{form.begin}\n", f"\n{form.end}"))
    call = f"{begin} body {end}" if form.begin else "body"
    between = '"\\n"' if form.begin else '"; "'
    return f"start: call{'' if is_one else f' ({between} call)*'}\ncall: {call}\nbody: {body_of_call(form, functions)}\n"


def strict_grammar(form: Format, functions: list[dict[str, Any]]) -> str:
    """A text that may call tools, the arguments of which keep to the schema if the function is strict. form.begin must not be "".

    The lazy lexeme `begin` ends as soon as form.begin is complete, so that the text after the last call cannot hold it.
    """
    known = [one if one.get("strict") else one | {"parameters": {"type": "object"}} for one in functions]
    end = json.dumps(f"\n{form.end}")
    return (
        f'start: call* TEXT\ncall: begin "\\n" body {end}\nbegin[lazy]: TEXT {json.dumps(form.begin)}\nTEXT: /(.|\\n)*/\n'
        f"body: {body_of_call(form, known)}\n"
    )


def body_of_call(form: Format, functions: list[dict[str, Any]]) -> str:
    """The JSON object of a call."""
    key = "parameters" if form == FORMATS["llama3_json"] else "arguments"
    calls, definitions = [], {}
    for index, one in enumerate(functions):
        definitions[f"f{index}"] = moved(one.get("parameters") or {"type": "object"}, f"#/$defs/f{index}")
        properties = {"name": {"const": one["name"]}, key: {"$ref": f"#/$defs/f{index}"}}
        calls.append({"type": "object", "properties": properties, "required": ["name", key], "additionalProperties": False})
    schema = {"anyOf": calls, "$defs": definitions, "x-guidance": WHITE_SPACE}
    return "%json " + json.dumps(schema, indent=1)  # in lines: the length of a line is limited


def moved(schema: Any, to: str) -> Any:
    """A schema whose references to itself are right when it stands at the place `to` of another."""
    if isinstance(schema, list):
        return [moved(one, to) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str) and value.startswith("#"):
            found[key] = to + value[1:]
        elif key in OF_NAMES and isinstance(value, dict):
            found[key] = {name: moved(one, to) for name, one in value.items()}
        else:
            found[key] = value if key in OF_DATA else moved(value, to)
    return found
