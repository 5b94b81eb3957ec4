#!/usr/bin/env bash
# tokenizers 0.23.3, Tokenizer.enable_truncation with a post-processor that adds special tokens.
#
# Input: 1,000 letters, a template "<s> $A </s>", and limits of 3, 2, 1 and 0 tokens, as may be left of a context; the same
# for a pair of texts.
# Expected: at most as many tokens as the limit allows, or an error where the special tokens alone exceed it.
# Seen: limits of 3 and 2 hold for one text; with 1 or 0 the encoding has all 1,002 tokens, without a message: a limit below the number of
# special tokens turns truncation off. A pair has three special tokens, so that with a limit of 2 one text has 2 tokens, and a pair 1,003.
# Without special tokens a limit of 0 gives 0 tokens.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PYTHON'
from tokenizers import Tokenizer, models, pre_tokenizers, processors

letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}


def lengths(special):
    """By limit: the number of tokens of one text of 1,000 letters, and of a pair of 500 each."""
    tokenizer = Tokenizer(models.BPE(letters, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if special:
        tokenizer.add_special_tokens(["<s>", "</s>"])
        template = {"single": "<s> $A </s>", "pair": "<s> $A </s> $B </s>", "special_tokens": [("<s>", 256), ("</s>", 257)]}
        tokenizer.post_processor = processors.TemplateProcessing(**template)
    found = {}
    for limit in (3, 2, 1, 0):
        tokenizer.enable_truncation(limit)
        found[limit] = len(tokenizer.encode("a" * 1000)), len(tokenizer.encode("a" * 500, "b" * 500))
        print(f"special tokens: {special!s:5}  limit {limit}: one text {found[limit][0]} tokens, a pair {found[limit][1]}")
    return found


assert lengths(special=True) == {3: (3, 3), 2: (2, 1003), 1: (1002, 1003), 0: (1002, 1003)}
assert lengths(special=False) == {3: (3, 3), 2: (2, 2), 1: (1, 1), 0: (0, 0)}
PYTHON
