#!/usr/bin/env bash
# llguidance 1.9.1, JSON schemas of numbers with a bound or a step that has several decimals.
#
# Input: {"type": "number", "minimum": 0, "maximum": 0.95}, as for top_p, with other bounds and with "multipleOf": 0.25, and JSON numbers
# that are valid.
# Expected: a number within the bounds may be written with as many decimals as one likes: 0.9, 0.90.
# Seen: with a maximum of 0.95 the grammar allows 0.8 and 0.90 and refuses 0.9. The number with the first decimals of the bound needs all of
# its decimals: 19.90 below 19.99, 42.30 below 42.35, -4.10 above -4.14. Of the multiples of 0.25 it refuses 0.5 and 1.5, and
# allows 0.50 and 1.50; of those of 0.01 it allows both. A model that has written "0.9" cannot stop: the mask holds digits alone, 0 to 5,
# so that it goes on with another number as likely as with a 0. With a maximum of 0.9 it is 0.9 that is allowed, and 0.90 that is not.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check llguidance==1.9.1 jsonschema==4.26.0
"$folder/venv/bin/python" - <<'PYTHON'
import json

from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper


class Bytes:
    """A tokenizer whose tokens are bytes."""

    eos_token_id, bos_token_id = 256, None
    tokens = [bytes([byte]) for byte in range(256)] + [b"<eos>"]
    special_token_ids = [256]

    def __call__(self, text):
        return list(text if isinstance(text, bytes) else text.encode())


tokenizer = LLTokenizer(TokenizerWrapper(Bytes()))


def start(schema):
    return LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(json.dumps(schema)), log_level=0)


def is_allowed(schema, text):
    matcher, tokens = start(schema), list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


for limits, allowed, refused in (
    ({"minimum": 0, "maximum": 0.95}, ["0.8", "0.90", "0.95"], ["0.9"]),
    ({"maximum": 19.99}, ["19", "19.5", "19.90", "19.989"], ["19.9"]),
    ({"minimum": 36.65, "maximum": 42.35}, ["36.7", "42", "42.2", "42.30"], ["42.3"]),
    ({"minimum": -4.14}, ["-4", "-4.0", "-4.10", "-3.1"], ["-4.1"]),
    ({"exclusiveMaximum": 1.25}, ["1", "1.1", "1.20", "1.249"], ["1.2"]),
    ({"minimum": 0, "maximum": 0.9}, ["0.8", "0.9"], ["0.90"]),
    ({"multipleOf": 0.25}, ["0.25", "0.50", "1", "1.00"], ["0.5", "1.5", "1.0"]),
    ({"multipleOf": 0.01}, ["1.5", "1.50"], []),
):
    schema = {"type": "number", **limits}
    print(f"{json.dumps(limits)}: allowed {allowed}, refused {refused}")
    assert all(Draft202012Validator(schema).is_valid(json.loads(text)) for text in allowed + refused)
    assert all(is_allowed(schema, text) for text in allowed)
    assert not any(is_allowed(schema, text) for text in refused)

matcher = start({"type": "number", "minimum": 0, "maximum": 0.95})
assert matcher.consume_tokens(list(b"0.9"))
mask = matcher.compute_logit_bias()
following = "".join(chr(token) for token in range(256) if mask[token])
print(f'behind "0.9" may stand: {following}')
assert following == "012345" and not mask[256]
PYTHON
