#!/usr/bin/env bash
# xgrammar 0.2.9 and outlines-core 0.2.14, JSON schemas of strings with a pattern; llguidance 1.9.1 for comparison.
#
# Input: {"type": "string", "pattern": "^C:\\\\[a-z]+$"}, which asks for "C:", one backslash and a name, and {"pattern": "^\"[a-z]+\"$"},
# which asks for a word in quotation marks.
# Expected: a pattern describes the string, and JSON writes its backslash as \\ and its quotation mark as \". llguidance does so.
# Seen: xgrammar and outlines-core match the pattern against the raw JSON text between the quotation marks. "C:\new" is allowed, which a
# parser reads as C:, a line break and "ew", and so is "C:\doc", which is not JSON; "C:\\new", the only right form, is refused. For the word
# in quotation marks ""hi"" is allowed, and "\"hi\"" is refused.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check \
    xgrammar==0.2.9 torch==2.13.0 outlines-core==0.2.14 llguidance==1.9.1 jsonschema==4.26.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import json
import re

from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from outlines_core.json_schema import build_regex_from_schema
from xgrammar import Grammar
from xgrammar.testing import _is_grammar_accept_string


class Bytes:
    """A tokenizer whose tokens are bytes."""

    eos_token_id, bos_token_id = 256, None
    tokens = [bytes([byte]) for byte in range(256)] + [b"<eos>"]
    special_token_ids = [256]

    def __call__(self, text):
        return list(text if isinstance(text, bytes) else text.encode())


tokenizer = LLTokenizer(TokenizerWrapper(Bytes()))


def llguidance(schema, text):
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(schema), log_level=0)
    return matcher.try_consume_tokens(list(text.encode())) == len(text) and matcher.is_accepting()


def is_valid(schema, text):
    try:
        return Draft202012Validator(json.loads(schema)).is_valid(json.loads(text))
    except json.JSONDecodeError:
        return False


for pattern, texts in ((r"^C:\\[a-z]+$", [r'"C:\new"', r'"C:\doc"', r'"C:\\new"']), ('^"[a-z]+"$', ['""hi""', r'"\"hi\""'])):
    schema = json.dumps({"type": "string", "pattern": pattern})
    for text in texts:
        valid = is_valid(schema, text)
        seen = {
            "xgrammar": _is_grammar_accept_string(Grammar.from_json_schema(schema), text),
            "outlines-core": bool(re.fullmatch(build_regex_from_schema(schema), text)),
            "llguidance": llguidance(schema, text),
        }
        print(f"{pattern}: {text} is valid: {valid}, allowed: {seen}")
        assert seen == {"xgrammar": not valid, "outlines-core": not valid, "llguidance": valid}
assert json.loads(r'"C:\new"') == "C:\new"
PYTHON
