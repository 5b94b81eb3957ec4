#!/usr/bin/env bash
# outlines-core 0.2.14, build_regex_from_schema with a "pattern" that has alternatives.
#
# Input: {"type": "string", "pattern": "cat|dog"}, the same with "^cat|dog$" and "^cat$|^dog$", and with parentheses around them.
# Expected: the strings "cat" and "dog", in quotation marks.
# Seen: cat|dog becomes ("cat|dog"), and means a quotation mark and cat, or dog and a quotation mark: `"cat` and `dog"` are allowed, which
# are no JSON, and both strings of the schema are refused. Of ^cat$|^dog$ the first and the last character are cut off, and what is left
# matches nothing: Index raises a ValueError. ^(cat|dog)$ is right. A bar without parentheses is what people write for a few words.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check outlines-core==0.2.14 jsonschema==4.26.0
"$folder/venv/bin/python" - <<'PYTHON'
import json

import jsonschema
from outlines_core import Guide, Index, Vocabulary
from outlines_core.json_schema import build_regex_from_schema

END = 256
VOCABULARY = Vocabulary(END, {bytes([byte]): [byte] for byte in range(256)})
TEXTS = ['"cat"', '"dog"', '"cat', 'dog"']


def allowed_texts(pattern):
    expression = build_regex_from_schema(json.dumps({"type": "string", "pattern": pattern}))
    print(f"{pattern} becomes {expression}:", end=" ")
    try:
        index = Index(expression, VOCABULARY)
    except ValueError as error:
        print("ValueError,", str(error).splitlines()[0][:60])
        return None
    allowed = []
    for text in TEXTS:
        guide = Guide(index)
        if all(byte in guide.get_tokens() and (guide.advance(byte) or True) for byte in text.encode()) and END in guide.get_tokens():
            allowed.append(text)
    print("allowed:", *allowed)
    return allowed


for pattern, allowed in (
    ("cat|dog", TEXTS[2:]),
    ("^cat|dog$", TEXTS[2:]),
    ("^cat$|^dog$", None),
    ("^(cat|dog)$", TEXTS[:2]),
):
    schema = {"type": "string", "pattern": pattern}
    assert all(jsonschema.Draft202012Validator(schema).is_valid(word) for word in ("cat", "dog"))
    assert allowed_texts(pattern) == allowed
PYTHON
