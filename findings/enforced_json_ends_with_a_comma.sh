#!/usr/bin/env bash
# lm-format-enforcer 0.11.3, JsonSchemaParser.
#
# Input: {"type": "object"}, an object with additionalProperties, {"type": "number"}, and {"enum": ["a\"b"]}: four schemas that it takes
# without a warning.
# Expected: every text that it lets end is JSON, and one that the schema allows.
# Seen: '{"a": 1,}' and '7.e1' may end, and json.loads refuses both. Of the enum only '"a"' can be written, which is another string: the
# value's own quotation mark ends it. A line break in a value of an enum may be written raw or escaped. An object that lists its keys under
# `properties` gets no such comma, nor does an array.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check lm-format-enforcer==0.11.3
"$folder/venv/bin/python" - <<'PYTHON'
import json

from lmformatenforcer import JsonSchemaParser


def may_end(schema, text):
    """Whether the parser allows each character of the text, and then the end."""
    parser = JsonSchemaParser(schema)
    for character in text:
        if character not in parser.get_allowed_characters():
            return False
        parser = parser.add_character(character)
    return parser.can_end()


def parsed(text):
    try:
        return repr(json.loads(text))
    except ValueError as error:
        return f"no JSON ({error})"


seen = [
    ({"type": "object"}, '{"a":1,}', True),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, '{"a":1,}', True),
    ({"type": "object", "properties": {"a": {"type": "integer"}}}, '{"a":1,}', False),
    ({"type": "array"}, "[1,]", False),
    ({"type": "number"}, "7.e1", True),
    ({"type": "number"}, "7.", False),
    ({"type": "string", "enum": ['a"b']}, '"a"', True),
    ({"type": "string", "enum": ['a"b']}, '"a\\"b"', False),
    ({"type": "string", "enum": ["a\nb"]}, '"a\nb"', True),
]
for schema, text, ends in seen:
    print(f"{json.dumps(schema):75} {text!r:10} allowed: {may_end(schema, text)!s:5}  {parsed(text)}")
    assert may_end(schema, text) == ends
PYTHON
