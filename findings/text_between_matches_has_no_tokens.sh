#!/usr/bin/env bash
# onnxruntime-extensions 0.15.2, which tokenizes for onnxruntime-genai, beside tokenizers 0.23.3: a tokenizer.json with a Split by a pattern.
#
# Input: a byte-level BPE of 256 bytes whose pre-tokenizer isolates groups of up to three digits, or spaces, or words and marks with a pattern
# built as DeepSeek-V3's; and the text "The price is 120 now".
# Expected: the 20 bytes of the text, as tokenizers gives: what lies between two matches is a part of its own.
# Seen: what the pattern does not match has no tokens. With the digits isolated "120" is left, with the spaces isolated four spaces; a text without
# a match has no token at all. In the class [\p{L}\p{M}] letters are not found, either, so that with the pattern for words only " p", spaces
# and digits are left. There is no message. With the pattern of Llama 3 all is right.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check onnxruntime-extensions==0.15.2 tokenizers==0.23.3 numpy==2.4.6
cd "$folder" # the tokenizer is written here
venv/bin/python -W ignore - <<'PYTHON'
import json

from onnxruntime_extensions import pp_api
from tokenizers import Regex, Tokenizer, decoders, models
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

TEXT = "The price is 120 now"
LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = {
    "Llama 3's": (LLAMA, TEXT),
    "digits": (r"\p{N}{1,3}", "120"),
    "spaces": (r"\s+", "    "),
    "words": (r" ?[\p{L}\p{M}]+|\p{N}{1,3}| ?[\p{P}\p{S}]+|\s+", " p  120 "),
}
letters = sorted(ByteLevel.alphabet())
for name, (pattern, expected) in PATTERNS.items():
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = Sequence([Split(Regex(pattern), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save("tokenizer.json")
    with open("tokenizer_config.json", "w") as file:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False}, file)
    other = pp_api.Tokenizer(".")
    ids = [int(token) for token in other.tokenize(TEXT)]
    found = tokenizer.decode(ids)
    print(f"{name}: {len(tokenizer.encode(TEXT).ids)} tokens, of onnxruntime-extensions {len(ids)}: {found!r}")
    assert tokenizer.decode(tokenizer.encode(TEXT).ids) == TEXT and found == expected
    assert name == "Llama 3's" or name == "words" or not len(other.tokenize("hello"))
PYTHON
