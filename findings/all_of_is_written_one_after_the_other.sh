#!/usr/bin/env bash
# outlines-core 0.2.14, build_regex_from_schema: "allOf" of several schemas, and patterns with "." or a negated class.
#
# Input: {"allOf": [{"enum": [1, 2]}, {"enum": [2, 3]}]}; an allOf of two objects, each with a property of its own, as inheritance is
# written; and strings with the patterns "^[^,]+$" and "^.$".
# Expected: texts that are valid for all parts, 2 in the first case, as llguidance 1.9.1 allows; or an error, as for other keys that it
# lacks. Of a pattern the JSON strings that match it: a quotation mark or a backslash is escaped, or left out.
# Seen: the regular expressions of the parts stand one after the other. The first allows 12, 13, 22 and 23, and not 2; of the objects it
# allows {"a":1}{"b":2}, which is no JSON, and not {"a":1,"b":2}. No text that it allows is valid, without a warning. One part alone is
# right. A pattern goes between two quotation marks as it is: "^[^,]+$" allows "a"b", a lone backslash and a raw line break, which
# json.loads refuses.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check outlines-core==0.2.14 jsonschema==4.26.0
"$folder/venv/bin/python" - <<'PYTHON'
import json
import re

import jsonschema
from outlines_core.json_schema import build_regex_from_schema


def is_valid(text, schema):
    try:
        jsonschema.validate(json.loads(text), schema)
    except (json.JSONDecodeError, jsonschema.ValidationError):
        return False
    return True


def compare(schema, texts):
    """The texts that the regular expression allows, and those that are valid."""
    regex = re.compile(build_regex_from_schema(json.dumps(schema), whitespace_pattern=""))
    allowed, valid = [text for text in texts if regex.fullmatch(text)], [text for text in texts if is_valid(text, schema)]
    print(f"{json.dumps(schema)}: allowed {allowed}, valid {valid}")
    return allowed, valid


def with_property(name):
    return {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]}


numbers = compare({"allOf": [{"enum": [1, 2]}, {"enum": [2, 3]}]}, ["1", "2", "3", "12", "13", "22", "23"])
assert numbers == (["12", "13", "22", "23"], ["2"])
objects = compare({"allOf": [with_property("a"), with_property("b")]}, ['{"a":1}', '{"a":1,"b":2}', '{"b":2,"a":1}', '{"a":1}{"b":2}'])
assert objects == (['{"a":1}{"b":2}'], ['{"a":1,"b":2}', '{"b":2,"a":1}'])
assert compare({"allOf": [{"type": "integer"}]}, ["1", "1.5"]) == (["1"], ["1"])
texts = ['"a"', '"a"b"', '"\\"', '"\n"', '"a,"']
assert compare({"type": "string", "pattern": "^[^,]+$"}, texts) == (texts[:4], texts[:1])
assert compare({"type": "string", "pattern": "^.$"}, ['"a"', '"""', '"\\"']) == (['"a"', '"""', '"\\"'], ['"a"'])
PYTHON
