#!/usr/bin/env bash
# tokenizers 0.23.3, a tokenizer.json whose "added_tokens" have ids with a hole.
#
# Input: a byte-level BPE with 256 tokens, and "<a>", "<b>" and "<c>" with the ids 256, 257 and 258; then the same file without the entry of
# "<b>", as one takes an unwanted token out by hand. Each entry states its id.
# Expected: "<c>" stays 258, the row of the embedding that it was trained with, or the file is refused.
# Seen: "<c>" is 257, without a message or exception in Python, and 258 is no token: the ids in the file are not used, each token gets the
# next one. They are not used for order either, if holes are in them: ids 300 and 270 become 256 and 257 in the order of the file. An entry
# for a token of the vocabulary has the id of the vocabulary, not its own. Saved again, the file states the new ids.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PYTHON'
import json

from tokenizers import Tokenizer, models, pre_tokenizers

letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
tokenizer = Tokenizer(models.BPE(letters, []))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.add_special_tokens(["<a>", "<b>", "<c>"])
file = json.loads(tokenizer.to_str())
first, _, third = file["added_tokens"]


def ids(added):
    """The ids that the file states, and those that a tokenizer read from it has; both by token."""
    read = Tokenizer.from_str(json.dumps({**file, "added_tokens": added}))
    stated = {entry["content"]: entry["id"] for entry in added}
    found = {content: read.encode(content).ids[0] for content in stated}
    assert {entry["content"]: entry["id"] for entry in json.loads(read.to_str())["added_tokens"]} == found
    print("stated", stated, "read", found)
    return list(stated.values()), list(found.values())


assert ids(file["added_tokens"]) == ([256, 257, 258], [256, 257, 258])
assert ids([first, third]) == ([256, 258], [256, 257])
assert ids([{**first, "id": 300}, {**third, "id": 270}]) == ([300, 270], [256, 257])
assert ids([{**first, "content": "a", "id": 300}]) == ([300], [letters["a"]])
PYTHON
