#!/usr/bin/env bash
# outlines-core 0.2.14, Index and Guide, the masks of a regular expression.
#
# Input: [0-9]+(\.[0-9]+)?, yes(, please)? and the expression that build_regex_from_schema gives for {"type": "number"}; a vocabulary with
# one token per byte, and the same with the tokens ".5", ", please" and "yes, p".
# Expected: behind "1" the mask allows digits, the dot, and the end.
# Seen: it does not allow the dot: 1.5 cannot be written, and neither can "yes, please" behind "yes", nor 1.5 or 1e+5 as a JSON number,
# token by token. The token ".5" is allowed. Where the text so far is complete, a token is left out if the text with it is not. It is
# allowed if that text is complete as well, or if the token jumps over the complete text, as "yes, p" does. So the tokenizer decides what a
# model may say. Inside of {"a": 1.5}, where nothing is complete before the brace, the dot is allowed.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check outlines-core==0.2.14
"$folder/venv/bin/python" - <<'PYTHON'
import json
import re

from outlines_core import Guide, Index, Vocabulary
from outlines_core.json_schema import build_regex_from_schema

BYTES = {bytes([byte]): [byte] for byte in range(256)}
LONGER = [b".5", b", please", b"yes, p"]
VOCABULARY = Vocabulary(300, {**BYTES, **{text: [256 + place] for place, text in enumerate(LONGER)}})


def is_allowed(expression, *tokens):
    """Whether the masks allow these tokens, and then the end."""
    guide = Guide(Index(expression, VOCABULARY))
    for text in tokens:
        token = 256 + LONGER.index(text) if text in LONGER else text[0]
        if token not in guide.get_tokens():
            return False
        guide.advance(token)
    return 300 in guide.get_tokens()


def letters(text):
    return [bytes([byte]) for byte in text.encode()]


decimal, answer = r"[0-9]+(\.[0-9]+)?", "yes(, please)?"
number = build_regex_from_schema(json.dumps({"type": "number"}))
inside = build_regex_from_schema(json.dumps({"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]}))
for expression, tokens, allowed in (
    (decimal, letters("12"), True),
    (decimal, letters("1.5"), False),
    (decimal, [b"1", b".5"], True),
    (answer, letters("yes"), True),
    (answer, letters("yes, please"), False),
    (answer, [*letters("yes"), b", please"], True),
    (answer, [b"yes, p", *letters("lease")], True),
    (number, letters("-12"), True),
    (number, letters("1.5"), False),
    (number, letters("1e+5"), False),
    (number, [b"1", b".5"], True),
    (inside, letters('{"a":1.5}'), True),
):
    text = b"".join(tokens)
    print(f"{expression}: {text.decode()} as {len(tokens)} tokens: {'allowed' if is_allowed(expression, *tokens) else 'forbidden'}")
    assert re.fullmatch(expression, text.decode()) and is_allowed(expression, *tokens) == allowed
PYTHON
