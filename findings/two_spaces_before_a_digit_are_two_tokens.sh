#!/usr/bin/env bash
# openvino-tokenizers 2026.4.1.0 with openvino 2026.4.1, and tokenizers 0.23.3 by transformers 5.24.0: convert_tokenizer.
#
# Input: a byte-level BPE whose pre-tokenizer first isolates digits, then splits the rest by a pattern that ends in \s+(?!\S)|\s+, as those of
# DeepSeek-V3 (which isolates Chinese too) and StarCoder are built; and texts with two or more spaces, such as an aligned table.
# Expected: the ids of tokenizers, as for letters.
# Seen: before a digit a run of spaces is another sequence of tokens: two spaces are one token for tokenizers, and twice the token of one space
# for OpenVINO. The second pattern is to see each part alone, so that the spaces end there and \s+(?!\S) matches all; OpenVINO's looks
# ahead into the digit. One space is right, and so are spaces before letters or at the end.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    openvino==2026.4.1 openvino-tokenizers==2026.4.1.0 tokenizers==0.23.3 transformers==5.24.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - 2>"$folder/messages" <<'PYTHON' || { cat "$folder/messages"; exit 1; }
from openvino import compile_model
from openvino_tokenizers import convert_tokenizer
from tokenizers import Regex, Tokenizer, models, trainers
from tokenizers.decoders import ByteLevel as Decoder
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split
from transformers import PreTrainedTokenizerFast

LETTERS = Regex(r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
BYTES = ByteLevel(add_prefix_space=False, use_regex=False)
KINDS = {
    "DeepSeek-V3": Sequence([Split(Regex(r"\p{N}{1,3}"), "isolated"), Split(LETTERS, "isolated"), BYTES]),
    "StarCoder": Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]),
}
corpus = ["total   12  345   6", "x =    10\n    y  =  7", "some  words   and    spaces"] * 10
for kind, pre_tokenizer in KINDS.items():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, Decoder()
    alphabet = ByteLevel.alphabet()
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="!")
    converted = compile_model(convert_tokenizer(tokenizer), "CPU")
    for text, same in (("x 12", True), ("x  y", True), ("x  ", True), ("x  12", False), ("total    12", False), ("a\n    7", False)):
        ids, found = tokenizer(text)["input_ids"], converted([text])["input_ids"][0].tolist()
        print(f"{kind} {text!r}:", *(tokenizer.convert_ids_to_tokens(tokens) for tokens in (ids, found)))
        assert (found == ids) == same and tokenizer.decode(found) == tokenizer.decode(ids) == text
PYTHON
