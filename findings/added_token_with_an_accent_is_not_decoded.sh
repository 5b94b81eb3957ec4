#!/usr/bin/env bash
# tokenizers 0.23.3, a byte-level BPE tokenizer with added tokens that are not ASCII.
#
# Input: the pre-tokenizer and the decoder ByteLevel, as GPT-2, Llama 3 and Qwen have, and add_tokens(["naïve", "über", "你好"]).
# Expected: a token that encode finds is a token that decode spells: "naïve" for all, or U+FFFD for all that is not ASCII.
# Seen: "naïve" and "über" decode to "na�ve" and "�ber", "你好" decodes to "你好". Added tokens pass through the decoder too, whose alphabet
# spells bytes with letters up to U+0143: "ï" stands for the byte 0xEF. A token with one letter outside of this alphabet is left as it is, so
# that "naïve你" is right. "Ġx", an added token of two letters, decodes to " x". A special token fares the same.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PYTHON'
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
tokenizer.add_tokens(["naïve", "über", "你好", "naïve你", "Ġx"])
tokenizer.add_special_tokens(["<|début|>"])
expected = {
    "naïve": "na\ufffdve", "über": "\ufffdber", "你好": "你好", "naïve你": "naïve你", "Ġx": " x", "<|début|>": "<|d\ufffdbut|>",
}  # fmt: skip
for text, decoded in expected.items():
    ids = tokenizer.encode(text).ids
    print(text, ids, tokenizer.decode(ids, skip_special_tokens=False))
    assert len(ids) == 1 and tokenizer.decode(ids, skip_special_tokens=False) == decoded
assert tokenizer.decode(tokenizer.encode("naïf").ids) == "naïf"  # the same letter outside of added tokens is right
PYTHON
