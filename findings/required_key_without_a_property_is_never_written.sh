#!/usr/bin/env bash
# outlines-core 0.2.14, build_regex_from_schema.
#
# Input: {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["z"]}: "z" may be any value, as `properties` does not list it.
# Expected: texts with "z", as llguidance 1.9.1 writes them, or an error: constrained output is valid output.
# Seen: the regular expression allows {} and {"a": 1}, which are not valid, and refuses {"a": 1, "z": 2} and {"z": 2}, which are: every text
# that it allows breaks the schema, without a warning. (xgrammar 0.2.8 allows {"a": 1}, too.)
# Bounds of numbers vanish in the same way: {"type": "integer", "minimum": 1} allows 0. And the pattern "^[A-Z]{2}" allows no text at all: "^"
# stands behind the quotation mark, where no line begins. It is taken off only if the pattern also ends with "$".
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check outlines-core==0.2.14 jsonschema==4.26.0
"$folder/venv/bin/python" - <<'PYTHON'
import json
import re

from jsonschema import Draft202012Validator
from outlines_core.json_schema import build_regex_from_schema


def show(schema, texts):
    pattern = build_regex_from_schema(json.dumps(schema))
    print(json.dumps(schema), pattern, sep="\n  ")
    for text, allowed, valid in texts:
        print(f"  {text}: allowed {allowed}, valid {valid}")
        assert bool(re.fullmatch(pattern, text)) == allowed
        assert Draft202012Validator(schema).is_valid(json.loads(text)) == valid


show(
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["z"]},
    [("{}", True, False), ('{"a": 1}', True, False), ('{"z": 2}', False, True), ('{"a": 1, "z": 2}', False, True)],
)
show({"type": "integer", "minimum": 1}, [("0", True, False), ("1", True, True)])
show({"type": "string", "pattern": "^[A-Z]{2}$"}, [('"AB"', True, True)])
show({"type": "string", "pattern": "^[A-Z]{2}"}, [('"AB"', False, True), ('"ABC"', False, True)])
PYTHON
