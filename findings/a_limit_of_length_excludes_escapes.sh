#!/usr/bin/env bash
# xgrammar 0.2.8, JSON schemas of strings with a limit of length.
#
# Input: {"type": "string", "maxLength": 5}, and the same with minLength, as a whole schema or as a property.
# Expected: the JSON strings that {"type": "string"} allows, if they are short enough: RFC 8259 requires an escape for characters below
# U+0020.
# Seen: the limit puts another rule in place of that for strings, [^"\\\r\n]{0,5}. A raw tab or NUL is allowed, which json.loads refuses,
# and no escape is: a short text with a quotation mark, a backslash or a line break cannot be written at all, as "\n" and "\"" are refused.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check xgrammar==0.2.8 torch==2.13.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import json

from xgrammar import Grammar
from xgrammar.testing import _is_grammar_accept_string

TEXTS = ['"ab"', '"abcdefg"', '"a\tb"', '"a\0b"', '"a\\nb"', '"a\\"b"', '"\\u00e9"']


def parses(text):
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def allowed(schema):
    return [_is_grammar_accept_string(Grammar.from_json_schema(json.dumps(schema)), text) for text in TEXTS]


rows = zip(TEXTS, map(parses, TEXTS), allowed({"type": "string"}), allowed({"type": "string", "maxLength": 5}), strict=True)
for text, valid, plain, short in rows:
    print(f"{text!r:14} is JSON: {valid!s:5}  allowed: {plain!s:5}  allowed with maxLength 5: {short}")
assert allowed({"type": "string"}) == [parses(text) for text in TEXTS]
for limit in ({"maxLength": 5}, {"minLength": 1, "maxLength": 5}):
    assert allowed({"type": "string", **limit}) == [True, False, True, True, False, False, False]
PYTHON
