#!/usr/bin/env bash
# transformers 5.24.0 (tokenizers 0.23.x), AutoTokenizer.from_pretrained on a directory with a complete tokenizer.json.
#
# Input: model_type "llama", tokenizer_class "GPT2Tokenizer" (as SmolLM and SmolLM2 have it), and a tokenizer.json whose pre_tokenizer is
# Digits(individual_digits=True) followed by ByteLevel, so that "2026" is four tokens.
# Expected: the ids of tokenizer.json, which is complete.
# Seen: "2026" is one token, ids [258] instead of [17, 15, 17, 21]. GPT2Tokenizer takes the vocabulary and the merges from tokenizer.json, and
# puts a plain ByteLevel in place of its pre_tokenizer, without a warning. With tokenizer_class "PreTrainedTokenizerFast" the ids are right.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.24.0
cd "$folder"
venv/bin/python - <<'PYTHON'
import json, os
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer

vocabulary = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
digits = [vocabulary[digit] for digit in "2026"]
merges = [("2", "0"), ("2", "6"), ("20", "26")]
for left, right in merges:
    vocabulary[left + right] = len(vocabulary)
tokenizer = Tokenizer(models.BPE(vocabulary, merges))
split = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Sequence(split), decoders.ByteLevel()
os.mkdir("model")
tokenizer.save("model/tokenizer.json")
json.dump({"model_type": "llama"}, open("model/config.json", "w"))


def ids(kind):
    json.dump({"tokenizer_class": kind}, open("model/tokenizer_config.json", "w"))
    return AutoTokenizer.from_pretrained("model").encode("2026")


print("tokenizer.json itself", tokenizer.encode("2026").ids)
print("PreTrainedTokenizerFast", ids("PreTrainedTokenizerFast"))
print("GPT2Tokenizer", ids("GPT2Tokenizer"))
assert tokenizer.encode("2026").ids == ids("PreTrainedTokenizerFast") == digits
assert ids("GPT2Tokenizer") == [vocabulary["2026"]]
PYTHON
