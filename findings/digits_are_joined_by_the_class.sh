#!/usr/bin/env bash
# onnxruntime-extensions 0.15.2, which tokenizes for onnxruntime-genai, beside tokenizers 0.23.3: the pre-tokenizer of a tokenizer.json.
#
# Input: a byte-level BPE whose pre-tokenizer isolates each digit, as those of StarCoder and SmolLM do, or is GPT-2's alone; the vocabulary has
# tokens for "12", "123" and so on, and the text is "id_x 123456".
# Expected: the ids of tokenizers, whose file it reads: six digits, or " 123456".
# Seen: Digits is ignored, and "123456" is one token. If tokenizer_config.json names the class "LlamaTokenizerFast", the pattern of Llama 3 is
# used, whatever the file says: "123", "456" and "_x" are parts. With "GPT2Tokenizer" the pre-tokenizer of GPT-2 is right. A model that
# learned numbers digit by digit gets one token for six, and the text is the same after decoding.
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
from tokenizers import Tokenizer, decoders, models
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

TEXT = "id_x 123456"
GPT2 = ByteLevel(add_prefix_space=False)
DIGITS = ["1", "2", "3", "4", "5", "6"]

letters = sorted(ByteLevel.alphabet())
words = ["id", "_x", "Ġ1", "12", "123", "1234", "12345", "123456", "Ġ12", "Ġ123", "Ġ1234", "Ġ12345", "Ġ123456", "45", "456"]
vocabulary = {word: number for number, word in enumerate(letters + words)}
merges = [(word[:-1], word[-1]) for word in words]
for pre_tokenizer, name, kind, right, expected in (
    (Sequence([Digits(individual_digits=True), GPT2]), "Digits", "GPT2Tokenizer", ["id", "_", "x", " ", *DIGITS], ["id", "_", "x", " 123456"]),
    (GPT2, "GPT-2's", "GPT2Tokenizer", ["id", "_", "x", " 123456"], ["id", "_", "x", " 123456"]),
    (GPT2, "GPT-2's", "LlamaTokenizerFast", ["id", "_", "x", " 123456"], ["id", "_x", " ", "123", "456"]),
):
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save("tokenizer.json")
    with open("tokenizer_config.json", "w") as file:
        json.dump({"tokenizer_class": kind, "add_bos_token": False}, file)
    found = [tokenizer.decode([int(token)]) for token in pp_api.Tokenizer(".").tokenize(TEXT)]
    tokens = [tokenizer.decode([token]) for token in tokenizer.encode(TEXT).ids]
    print(f"{name}, {kind}: {tokens}, of onnxruntime-extensions {found}")
    assert tokens == right and found == expected
PYTHON
