#!/usr/bin/env bash
# tokenizers 0.23.3, added tokens of which one contains another.
#
# Input: add_special_tokens(["<tool>"]) and add_tokens(["<tool><call>"]), and the text "<tool><call>".
# Expected: the longest token that matches at a place, as between "<tool>" and "<tool><call>" if both are plain or both are special.
# Seen: the shorter one, and then single letters. Two automata look for added tokens: the first for those with normalized=False, the default
# of special tokens, and the second, in what the first has left, for those with normalized=True, the default of plain ones. A special token
# therefore cuts every longer plain one, also in its middle: "a<tool>b" as a plain token is never found. add_tokens reports success.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PYTHON'
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())


def tokens(special, plain, text):
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert tokenizer.add_special_tokens(special) + tokenizer.add_tokens(plain) == len(special) + len(plain)
    return tokenizer.encode(text).tokens


short, long, around = "<tool>", "<tool><call>", "a<tool>b"
found = {
    "short special, long plain": tokens([short], [long], long),
    "both special": tokens([short, long], [], long),
    "both plain": tokens([], [short, long], long),
    "short special, long plain with normalized=False": tokens([short], [AddedToken(long, normalized=False)], long),
    "short special, around plain": tokens([short], [around], around),
}
for case, what in found.items():
    print(f"{case}: {what}")
cut, whole, _, apart, middle = found.values()
assert cut == ["<tool>", *"<call>"] and whole == found["both plain"] == apart == [long] and middle == ["a", "<tool>", "b"]
PYTHON
