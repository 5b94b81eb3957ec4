#!/usr/bin/env bash
# llguidance 1.9.1, LLMatcher.rollback behind an end of sequence.
#
# Input: a grammar that allows "ab" alone, and one that allows "ab" or "abc"; the tokens "ab" and EOS are consumed, both accepted, then
# rollback(1) takes one token back: "Rollback the last num_tokens consumed".
# Expected: EOS is taken back, in both: behind "ab" the masks allow EOS, or EOS and "c".
# Seen: where "ab" could not go on, EOS was accepted without being counted, so that rollback(1) takes back "ab" itself, and reports success.
# Where it could go on, EOS is counted and taken back. Code that verifies drafts by consuming and rolling back as many tokens as were accepted,
# an EOS among them, therefore loses a token of its text in some states of a grammar and not in others.
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
    tokens = [b"</s>", b"a", b"b", b"ab", b"c"]

    def __call__(self, text):
        return [self.tokens.index(bytes([byte])) for byte in text.encode()]


tokenizer = LLTokenizer(Words(), n_vocab=5, eos_token=0)


def allowed(matcher):
    bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    return [Words.tokens[token].decode() for token in np.flatnonzero(bits)]


found = {}
for language in ('"ab"', '"ab" "c"?'):
    matcher = LLMatcher(tokenizer, f'%llguidance {{"no_forcing": true}}\nstart: {language}', log_level=0)
    assert matcher.consume_token(3)
    before = allowed(matcher)
    assert matcher.consume_token(0) and not matcher.is_error()
    assert matcher.rollback(1) and not matcher.is_error()
    found[language] = before, allowed(matcher)
    print(f'{language:10} behind "ab": {before}; behind "ab", EOS, rollback(1): {found[language][1]}')
assert found['"ab"'] == (["</s>"], ["a", "ab"])
assert found['"ab" "c"?'] == (["</s>", "c"], ["</s>", "c"])
PYTHON
