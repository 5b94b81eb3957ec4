#!/usr/bin/env bash
# kitoken 0.11.1, Kitoken.from_tokenizers, with tokenizers 0.23.3 for comparison.
#
# Input: a byte-level tokenizer.json whose added tokens have "rstrip" (as <|user|> of Phi-3 has), "lstrip" (as <mask> of RoBERTa has) or
# "single_word", and the texts "<|user|>\nHi", "a <mask> b" and "cat concat".
# Expected: the ids of tokenizers, since the file is converted without a message: rstrip takes the line break into the special token, and
# "cat" is no token inside of "concat".
# Seen: all three are ignored. Behind each <|user|> stands a token "\n", in front of <mask> a space, and "concat" ends with the token
# "cat". Every turn of a chat has a token that the model did not see there in training. Texts without such tokens have the same ids.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check kitoken==0.11.1 tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PYTHON'
from kitoken import Kitoken
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

letters = sorted(pre_tokenizers.ByteLevel.alphabet())  # of which \u010a is a line break and \u0120 a space
for token, text, whole, surplus in (
    (AddedToken("<|user|>", special=True), "<|user|>\nHi", 4, None),
    (AddedToken("<|user|>", rstrip=True, special=True), "<|user|>\nHi", 3, "\u010a"),
    (AddedToken("<mask>", special=True), "a <mask> b", 5, None),
    (AddedToken("<mask>", lstrip=True, special=True), "a <mask> b", 4, "\u0120"),
    (AddedToken("cat", single_word=True), "a cat", 3, None),
    (AddedToken("cat", single_word=True), "cat concat", 8, "cat"),
):
    reference = Tokenizer(models.BPE({letter: place for place, letter in enumerate(letters)}, []))
    reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    reference.decoder = decoders.ByteLevel()
    reference.add_special_tokens([token]) if token.special else reference.add_tokens([token])
    right = reference.encode(text).ids
    found = Kitoken.from_tokenizers(reference.to_str().encode()).encode(text, True)
    names = [[reference.id_to_token(number) for number in ids] for ids in (right, found)]
    flags = [flag for flag in ("lstrip", "rstrip", "single_word") if getattr(token, flag)]
    print(f"{token.content} with {flags}, {text!r}: tokenizers {names[0]}, kitoken {names[1]}")
    assert len(right) == whole and (found == right) == (surplus is None)
    assert surplus is None or names[1].count(surplus) == names[0].count(surplus) + 1
PYTHON
