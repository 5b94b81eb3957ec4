#!/usr/bin/env bash
# mlx-lm 0.32.2 with mlx 0.32.4 on the CPU: streamed text of byte-level tokenizers, as of Llama 3 and Qwen.
#
# Input: the ids of " Paris", of "    return 1" with its four spaces, of "  - two", and of a NUL byte, token by token into the streaming
# detokenizer that load() chooses and stream_generate uses.
# Expected: the text of tokenizer.decode(ids), where the space belongs to the token: " Paris" completes "The capital is".
# Seen: the first space of an answer is dropped, as SentencePiece's prefix is: "Paris", "   return 1" with three spaces, " - two". Of a
# completion, prompt and answer do not join to what the model wrote, "The capital isParis", and a line of Python is indented wrongly. NUL
# becomes "Ā", the letter that stands for it in the vocabulary. Text that begins without a space is right, as are chats.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check mlx-lm==0.32.2 "mlx[cpu]==0.32.4" transformers==5.24.0 tokenizers==0.23.3
"$folder/venv/bin/python" - "$folder/tokenizer" <<'PYTHON'
import pathlib
import sys

from mlx_lm.tokenizer_utils import load
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

bpe = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[]))
bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
bpe.decoder = decoders.ByteLevel()
bpe.add_special_tokens(["<|end|>"])
PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|end|>").save_pretrained(sys.argv[1])
tokenizer = load(pathlib.Path(sys.argv[1]))


def streamed(text):
    detokenizer, ids = tokenizer.detokenizer, tokenizer.encode(text, add_special_tokens=False)
    detokenizer.reset()
    segments = []
    for token in ids:
        detokenizer.add_token(token)
        segments.append(detokenizer.last_segment)
    detokenizer.finalize()
    segments.append(detokenizer.last_segment)
    assert "".join(segments) == detokenizer.text and tokenizer.decode(ids) == text
    print(f"{type(detokenizer).__name__}: {text!r} is streamed as {detokenizer.text!r}")
    return detokenizer.text


assert streamed(" Paris") == "Paris"
assert streamed("    return 1") == "   return 1"
assert streamed("  - two") == " - two"
assert streamed("a\0b") == "aĀb"
assert streamed("Paris is ") == "Paris is "
PYTHON
