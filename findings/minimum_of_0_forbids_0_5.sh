#!/usr/bin/env bash
# formatron 0.5.0 (kbnf 0.4.2), JSON schemas with "minimum" and "maximum" for numbers.
#
# Input: the schema of an object whose key "a" is a number from 0 to 1, at least 0, at most 0, or above 0, and texts byte by byte.
# Expected: of 0, 0.5, 0.0, 1, 1.5 and 5 the range from 0 to 1 allows 0, 0.5, 0.0 and 1, or a message says that ranges are not supported, as
# it does for a maximum of 1 alone.
# Seen: it allows 0, 1, 1.5 and 5. The maximum beside a minimum of 0 is ignored without a message, and a number that begins with "0" ends there:
# in the pattern `0|[1-9][0-9]*(\.[0-9]+)?` the fraction belongs to the second part alone. So a score or a probability can only be 0 or at
# least 1. Above 0 nothing below 1 is allowed. A number without a range may be 0.5.
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
TEXTS = ("0", "0.5", "0.0", "1", "1.5", "5", "-0.5", "-1.5")


def builder_for(limits):
    schema = {"type": "object", "properties": {"a": {"type": "number", **limits}}, "required": ["a"]}
    names = {"$id": "https://example.com/schema", "$schema": "https://json-schema.org/draft/2020-12/schema"}
    builder = FormatterBuilder()
    builder.append_line(f"{builder.json(create_schema({**names, **schema}))}")
    return builder


def allowed(limits, text):
    formatter = builder_for(limits).build(VOCABULARY, lambda ids: bytes(ids).decode())
    try:
        for byte in f'{{"a":{text}}}\n'.encode():
            formatter.accept_token(byte)
    except ValueError:
        return False
    return formatter.is_completed()


for limits, expected in (
    ({}, list(TEXTS)),
    ({"minimum": 0, "maximum": 1}, ["0", "1", "1.5", "5"]),
    ({"minimum": 0}, ["0", "1", "1.5", "5"]),
    ({"exclusiveMinimum": 0}, ["1", "1.5", "5"]),
    ({"maximum": 0}, ["0", "-1.5"]),
):
    found = [text for text in TEXTS if allowed(limits, text)]
    print(f"{limits or 'no limits'}: of {' '.join(TEXTS)} are allowed {' '.join(found)}")
    assert found == expected
try:
    builder_for({"maximum": 1})
except ValueError as error:
    print("a maximum of 1 alone:", error)
else:
    raise SystemExit("a maximum of 1 alone is supported now")
PYTHON
