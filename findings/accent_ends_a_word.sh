#!/usr/bin/env bash
# @huggingface/tokenizers 0.2.0, the tokenizers of transformers.js, beside tokenizers 0.23.3: pre-tokenizers of a tokenizer.json.
#
# Input: a model of whole words with the pre-tokenizer Whitespace, and with Split in its modes, and a text in French and English.
# Expected: the words of tokenizers, whose file it reads.
# Seen: Whitespace makes "É", "t" and "é" of "Été", and "caf" and "é" of "café", since \w means ASCII alone in JavaScript; a word of the
# vocabulary with an accent is not found. Of the modes of Split only "isolated" is done: with "removed" the spaces stay, and with
# "merged_with_next" or "merged_with_previous" they stand alone. There is no message.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
npm install --silent --no-audit --no-fund --prefix "$folder" @huggingface/tokenizers@0.2.0
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tokenizers==0.23.3
cat >"$folder/encode.mjs" <<'JAVASCRIPT'
import { readFileSync } from "fs";
import { Tokenizer } from "@huggingface/tokenizers";

const text = process.argv[3];
const tokenizer = new Tokenizer(JSON.parse(readFileSync(process.argv[2])), {});
console.log(JSON.stringify(Array.from(tokenizer.encode(text).ids)));
JAVASCRIPT
cd "$folder"
venv/bin/python - <<'PYTHON'
import json
import subprocess

from tokenizers import Tokenizer, models
from tokenizers.pre_tokenizers import Split, Whitespace

TEXT = "Été au café 2"
WORDS = ["?", "Été", "au", "café", "2", " ", "caf", "é", "É", "t", " au", " café", " 2", "Été ", "au ", "café "]
CASES = (
    (Whitespace(), ["Été", "au", "café", "2"], ["É", "t", "é", "au", "caf", "é", "2"]),
    (Split(" ", "isolated"), ["Été", " ", "au", " ", "café", " ", "2"], None),
    (Split(" ", "removed"), ["Été", "au", "café", "2"], ["Été", " ", "au", " ", "café", " ", "2"]),
    (Split(" ", "merged_with_next"), ["Été", " au", " café", " 2"], ["Été", " ", "au", " ", "café", " ", "2"]),
    (Split(" ", "merged_with_previous"), ["Été ", "au ", "café ", "2"], ["Été", " ", "au", " ", "café", " ", "2"]),
)
for pre_tokenizer, right, other in CASES:
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, "?"))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.save("tokenizer.json")
    ids = json.loads(subprocess.run(["node", "encode.mjs", "tokenizer.json", TEXT], check=True, capture_output=True, text=True).stdout)
    found = [WORDS[token] for token in ids]
    tokens = tokenizer.encode(TEXT).tokens
    print(f"{json.loads(tokenizer.to_str())['pre_tokenizer']}: {tokens}, of @huggingface/tokenizers {found}")
    assert tokens == right and found == (other or right)
PYTHON
