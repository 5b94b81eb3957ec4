#!/usr/bin/env bash
# tokenizers 0.23.3 and sentencepiece 0.2.3, decoding of byte tokens, with the vocabulary of Mistral 7B (a file of mistral_common 1.13.1).
#
# Input: tokens of single bytes, <0x0A> and so on, which spell characters that the vocabulary lacks. The last character is cut, as
# max_tokens or a stream's current end cut it: "𓀀𓀁" with the last of its eight bytes missing, and a line break before half a character.
# Expected: whole characters stay, and each byte that is left over becomes U+FFFD, as sentencepiece, which defines this vocabulary, decodes.
# Seen: the decoder ByteFallback, which Llama 2, Mistral and Gemma have in tokenizer.json, takes all neighbouring byte tokens together: if
# one byte is wrong, all become U+FFFD. The first hieroglyph, which decode gave a token before, is gone, and so is the line break. Text
# that a server has sent is no beginning of the text that it decodes later; the length of a text shrinks when a token comes.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tokenizers==0.23.3 sentencepiece==0.2.3
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --target "$folder/files" mistral_common==1.13.1
"$folder/venv/bin/python" - "$folder/files/mistral_common/data/tokenizer.model.v1" <<'PYTHON'
import sys

from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer, decoders, models

original = SentencePieceProcessor(model_file=sys.argv[1])
vocabulary = {original.id_to_piece(i): i for i in range(original.vocab_size())}
tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
tokenizer.decoder = decoders.Sequence(steps)


def both(data):
    ids = [vocabulary[f"<0x{byte:02X}>"] for byte in data]
    texts = original.decode(ids), tokenizer.decode(ids)
    print(data.hex(" "), " sentencepiece:", repr(texts[0]), " tokenizers:", repr(texts[1]))
    return texts


signs = "𓀀𓀁".encode()
assert original.encode("𓀀", out_type=str)[1:] == [f"<0x{byte:02X}>" for byte in signs[:4]]
assert both(signs) == ("𓀀𓀁", "𓀀𓀁") and both(signs[:4]) == ("𓀀", "𓀀")
assert both(signs[:5]) == ("𓀀\ufffd", 5 * "\ufffd") and both(signs[:7]) == ("𓀀" + 3 * "\ufffd", 7 * "\ufffd")
assert both(b"\n\xf0\x93") == ("\n\ufffd\ufffd", 3 * "\ufffd")
PYTHON
