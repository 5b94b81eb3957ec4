#!/usr/bin/env bash
# tiktoken 0.14.0, Encoding with special tokens of which one begins another.
#
# Input: "<|a|>", "<|a|>b" and "<|a|>bc" as special tokens, in each order of the dictionary, and the text "<|a|>bc" with
# allowed_special="all".
# Expected: the longest token that matches, as tokenizers takes it; or the first of the dictionary.
# Seen: neither. The alternatives of the regular expression that looks for them stand in the order of a hash table in Rust, so the one found
# depends on hashes: with some orders the longest, with others the middle one, although it is neither the first nor the longest. It is the
# same in each run. Encodings of two tokenizers with the same vocabulary differ if their dictionaries were filled in another order.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tiktoken==0.14.0
"$folder/venv/bin/python" - <<'PYTHON'
import itertools

import tiktoken

TOKENS = ["<|a|>", "<|a|>b", "<|a|>bc"]
letters = {bytes([byte]): byte for byte in range(256)}
found = {}
for order in itertools.permutations(TOKENS):
    special = {token: 300 + TOKENS.index(token) for token in order}
    encoding = tiktoken.Encoding("test", pat_str=r"[\s\S]+", mergeable_ranks=letters, special_tokens=special)
    ids = encoding.encode("<|a|>bc", allowed_special="all")
    assert encoding.decode(ids) == "<|a|>bc"
    found[order] = TOKENS[ids[0] - 300]
    print("dictionary:", *order, " found:", found[order])
assert any(token != TOKENS[-1] for token in found.values()) and any(token != order[0] for order, token in found.items())
assert len(set(found.values())) > 1
PYTHON
