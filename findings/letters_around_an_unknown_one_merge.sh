#!/usr/bin/env bash
# tokenizers 0.23.3, models.BPE without an unknown token, as its trainer leaves it.
#
# Input: a BPE of letters, trained on "the cat that sat on a mat", encodes words with a letter that it has never seen: "thqe", "c-at".
# Expected: an error, as WordLevel, WordPiece and Unigram raise; or the unknown letter is left out, and the pieces on its two sides stay
# apart: "th" and "e".
# Seen: letters are left out before pairs are merged, so that the two sides merge across the hole: "thqe" is "the", and "c-at" is "cat". The
# offsets count what is left: "the" is said to be text[0:3], which is "thq". A word of unknown letters alone has no token.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PYTHON'
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer.train_from_iterator(["the cat that sat on a mat"] * 50, trainers.BpeTrainer(vocab_size=40, show_progress=False))
found = {}
for text in ("the", "thqe", "c-at", "qqq"):
    encoding = tokenizer.encode(text)
    found[text] = encoding.tokens, [text[start:end] for start, end in encoding.offsets]
    print(f"{text}: tokens {encoding.tokens}, the text at their offsets {found[text][1]}")
assert found == {"the": (["the"], ["the"]), "thqe": (["the"], ["thq"]), "c-at": (["cat"], ["c-a"]), "qqq": ([], [])}
PYTHON
