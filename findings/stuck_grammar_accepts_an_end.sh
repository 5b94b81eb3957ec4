#!/usr/bin/env bash
# llguidance 1.9.1, LLMatcher where no token of the vocabulary continues the text.
#
# Input: a grammar that allows "ax" alone, and a vocabulary without "x". "a" is consumed, then the next mask is computed.
# Expected: a mask of zeros, or an exception; and consume_token(EOS) returns False, because "a" is no text of the grammar: "If it returns
# false, the matcher is in an error state".
# Seen: the mask allows EOS and nothing else, consume_token(EOS) returns True, and is_stopped() is True: by mask and return values the output
# "a" looks complete. Only is_error() and is_accepting() tell. Behind an error that consume_token itself raised it is the same.
# A loop that samples from the mask, consumes, and stops at EOS therefore returns half a text as a whole one.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check llguidance==1.9.1 numpy
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from llguidance import LLMatcher, LLTokenizer


class Words:
    is_tokenizer_wrapper, eos_token_id, bos_token_id, special_token_ids = True, 0, None, [0]
    tokens = [b"</s>", b"a", b"b"]

    def __call__(self, text):
        return [self.tokens.index(bytes([byte])) for byte in text.encode()]


matcher = LLMatcher(LLTokenizer(Words(), n_vocab=3, eos_token=0), '%llguidance {"no_forcing": true}\nstart: "ax"', log_level=0)
assert matcher.consume_token(1) and not matcher.is_error()
bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
allowed = [Words.tokens[token].decode() for token in np.flatnonzero(bits)]
accepted = matcher.consume_token(0)
print(f'behind "a": the mask allows {allowed}, consume_token(EOS) returns {accepted}, is_stopped() {matcher.is_stopped()}')
print(f"is_accepting() {matcher.is_accepting()}, is_error() {matcher.is_error()}")
assert allowed == ["</s>"] and accepted and matcher.is_stopped()
assert matcher.is_error() and not matcher.is_accepting()
PYTHON
