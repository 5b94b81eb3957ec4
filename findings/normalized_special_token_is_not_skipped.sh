#!/usr/bin/env bash
# tokenizers 0.23.3, Tokenizer.decode(ids, skip_special_tokens=True), which is the default.
#
# Input: a tokenizer with a normalizer that changes the text of a special token, here Llama's Prepend("▁"), and a special token that is matched
# in normalised text: AddedToken("</s>", special=True, normalized=True).
# Expected: decoding leaves the special token out.
# Seen: id_to_token gives "▁</s>", the normalised text; no special token has this text, so decode shows it: "▁hi ▁</s>" without a decoder.
# The same token with normalized=False is left out: "▁hi".
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PYTHON'
from tokenizers import AddedToken, Tokenizer, models, normalizers


def decoded(normalized):
    tokenizer = Tokenizer(models.WordLevel({"▁hi": 0, "</s>": 1}, unk_token="▁hi"))
    tokenizer.normalizer = normalizers.Prepend("▁")
    tokenizer.add_tokens([AddedToken("</s>", special=True, normalized=normalized)])
    print("normalized", normalized, repr(tokenizer.id_to_token(1)), repr(tokenizer.decode([0, 1])))
    return tokenizer.decode([0, 1])


assert decoded(normalized=False) == "▁hi"
assert decoded(normalized=True) == "▁hi ▁</s>"
PYTHON
