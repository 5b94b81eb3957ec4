"""How models write calls of tools.

    hermes        <tool_call>{"name": "f", "arguments": {...}}</tool_call>      Qwen, Hermes, SmolLM and many more
    llama3_json   {"name": "f", "parameters": {...}}                            Llama 3; the whole text is one call, or it has none
"""  # fmt: skip

from typing import NamedTuple


class Format(NamedTuple):
    """begin: the text before a call; "": a text that begins with an opening brace is a call. end: the text after it."""

    begin: str
    end: str


FORMATS = {"hermes": Format("<tool_call>", "</tool_call>"), "llama3_json": Format("", "")}


def format_of(templates: str) -> Format | None:
    """The format of the models with these chat templates; None if they have no place for tools."""
    if "tools" not in templates:
        return None
    is_llama = "<tool_call>" not in templates and ("<|python_tag|>" in templates or '{"name": function name' in templates)
    return FORMATS["llama3_json" if is_llama else "hermes"]
