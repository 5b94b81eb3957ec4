#!/usr/bin/env bash
# formatron 0.5.0 (kbnf 0.4.2), JSON schemas with "minItems".
#
# Input: the schema of an object whose key "a" is an array of integers with minItems 1 or 2, with maxItems or without, and texts byte by byte.
# Expected: with minItems 1 the arrays [1], [1,2] and [1,2,3]; with minItems 1 and maxItems 3 the same three.
# Seen: with minItems 1 all of them are refused, and [,1] is allowed, which is no JSON. With minItems 2 only arrays of exactly two are allowed. With
# maxItems, too, one item more is needed than minItems says: 1 to 3 items become 2 to 3. maxItems alone is right.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check formatron==0.5.0 kbnf==0.4.2 pydantic==2.11.10
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from formatron.formatter import FormatterBuilder
from formatron.schemas.json_schema import create_schema
from kbnf import Token, Vocabulary

VOCABULARY = Vocabulary({byte: Token(bytes([byte])) for byte in range(256)}, {byte: chr(byte) for byte in range(256)})
TEXTS = ("[]", "[1]", "[1,2]", "[1,2,3]", "[1,2,3,4]", "[,1]")


def allowed(limits, text):
    array = {"type": "array", "items": {"type": "integer"}, **limits}
    schema = {"type": "object", "properties": {"a": array}, "required": ["a"]}
    names = {"$id": "https://example.com/schema", "$schema": "https://json-schema.org/draft/2020-12/schema"}
    builder = FormatterBuilder()
    builder.append_line(f"{builder.json(create_schema({**names, **schema}))}")
    formatter = builder.build(VOCABULARY, lambda ids: bytes(ids).decode())
    try:
        for byte in f'{{"a":{text}}}\n'.encode():
            formatter.accept_token(byte)
    except ValueError:
        return False
    return formatter.is_completed()


for limits, expected in (
    ({}, ["[]", "[1]", "[1,2]", "[1,2,3]", "[1,2,3,4]"]),
    ({"maxItems": 3}, ["[]", "[1]", "[1,2]", "[1,2,3]"]),
    ({"minItems": 1}, ["[,1]"]),
    ({"minItems": 2}, ["[1,2]"]),
    ({"minItems": 1, "maxItems": 3}, ["[1,2]", "[1,2,3]"]),
):
    found = [text for text in TEXTS if allowed(limits, text)]
    print(f"{limits or 'no limits'}: of {' '.join(TEXTS)} are allowed {' '.join(found)}")
    assert found == expected
PYTHON
