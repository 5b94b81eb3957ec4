#!/usr/bin/env bash
# llguidance 1.9.1 with tokenizers 0.23.3: a grammar whose text spells a special token.
#
# Input: the schema {"const": "<|end|> ends a turn"}, a property of the name "<|tool|>", and a regular expression with "<|tool|>"; a
# byte-level tokenizer.json in which both are special tokens. Inside a grammar they are text, and the single letters spell them.
# Expected: the mask allows "<", and perhaps longer tokens that begin the text; no special token, as in '"<|tool|>"' of a free string.
# Seen: the mask allows one token, the special one, and consume_token(it) returns False with an error: no continuation is left.
# consume_token("<"), which the mask forbids, returns True. Where the grammar leaves no choice, the text is spelled by the tokenizer,
# which finds special tokens, and the mask becomes the first token of that. Beside another choice ("<|tool|>" or "<b>") the mask is right.
# "%llguidance {"no_forcing": true}" in front of the grammar gives the right mask, too.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check llguidance==1.9.1 tokenizers==0.23.3 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import json

import llguidance
import llguidance.numpy
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

bpe = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[]))
bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
bpe.decoder = decoders.ByteLevel()
bpe.add_special_tokens(["<|end|>", "<|tool|>"])
tokenizer = llguidance.LLTokenizer(bpe.to_str(), eos_token=bpe.token_to_id("<|end|>"))


def walk(name, grammar, before=""):
    """The tokens that the mask allows behind a text, and those among a few that consume_token takes."""
    masks = llguidance.numpy.allocate_token_bitmask(1, tokenizer.vocab_size)
    start = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
    assert not start.is_error() and all(start.consume_token(bpe.token_to_id(letter)) for letter in before)
    behind = start.deep_copy()
    llguidance.numpy.fill_next_token_bitmask(behind, masks)
    bits = np.unpackbits(masks.view(np.uint8), bitorder="little")
    allowed = {bpe.id_to_token(token) for token in np.flatnonzero(bits)}
    taken = {token for token in ("<", "<|tool|>", "<|end|>") if start.deep_copy().consume_token(bpe.token_to_id(token))}
    print(f"{name}: the mask allows {allowed if len(allowed) < 5 else len(allowed)}, consume_token takes {taken}")
    return allowed, taken


def schema(value):
    return llguidance.LLMatcher.grammar_from_json_schema(value, overrides={"whitespace_flexible": False})


tool = {"type": "object", "properties": {"<|tool|>": {"type": "null"}}, "required": ["<|tool|>"], "additionalProperties": False}
assert walk("const", schema({"const": "<|end|> ends a turn"}), '"') == ({"<|end|>"}, {"<"})
assert walk("property", schema(tool), '{"') == ({"<|tool|>"}, {"<"})
assert walk("expression", llguidance.LLMatcher.grammar_from_regex(r"<\|tool\|>!")) == ({"<|tool|>"}, {"<"})
assert walk("choice", llguidance.LLMatcher.grammar_from_regex(r"(<\|tool\|>|<b>)!")) == ({"<"}, {"<"})
assert walk("no forcing", '%llguidance {"no_forcing": true}\nstart: "<|tool|>!"') == ({"<"}, {"<"})
allowed, taken = walk("free string", schema({"type": "string"}), '"')
assert "<" in allowed and not {"<|tool|>", "<|end|>"} & (allowed | taken)
PYTHON
