#!/usr/bin/env bash
# llama.cpp of October 2026 (xllamacpp 2026.10.11549), the pre-tokenizer "tekken", beside the tokenizer of mistral-common 1.13.1.
#
# Input: the 130,072 tokens of the Tekken file that mistral-common contains, as a GGUF file with their merges and tokenizer.ggml.pre "tekken"
# (the weights are zeros), and short sentences in ten languages.
# Expected: the same ids, as for English, Russian, Chinese or Arabic.
# Seen: other ids in Hindi, Bengali, Tamil and Thai, and up to 1.7 times as many. In the file's pattern a mark (\p{M}) continues a word; llama.cpp
# has a pattern of its own for the name "tekken", in which a vowel sign ends the word and begins the next one. The text is the same after
# decoding, so that only the ids show it: the model reads tokens that it has hardly seen in training.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check xllamacpp==2026.10.11549 gguf==0.19.0 mistral-common==1.13.1 numpy==2.3.5
cd "$folder" # the model is written here
venv/bin/python -W ignore - 2>log <<'PYTHON' || { tail log && exit 1; }
import base64
import json
import urllib.request
from pathlib import Path

import mistral_common
import numpy as np
import xllamacpp
from gguf import GGUFWriter
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

SPECIAL = 1_000  # ids that mistral-common puts before those of text
SIZE = 131_072 - SPECIAL
SAME = ("It's HTML5, isn't it?", "Сегодня хорошая погода", "今天天气很好。", "اليوم الطقس جميل", "오늘은 날씨가 좋다", "hôm nay trời đẹp")
OTHER = ("आज मौसम अच्छा है।", "আজ আবহাওয়া ভালো", "இன்று வானிலை நன்றாக உள்ளது", "มีที่นั่งไหม ที่นี่")

file = next(Path(mistral_common.__file__).parent.rglob("tekken_240911.json"))
tekken = Tekkenizer.from_file(file)
entries = json.loads(file.read_text(encoding="utf-8"))["vocab"][:SIZE]
ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in entries}
tokens = sorted(ranks, key=ranks.get)
printable = [*range(33, 127), *range(161, 173), *range(174, 256)]  # byte-level BPE writes the other bytes as characters from 256 up
characters = {byte: chr(byte) for byte in printable}
characters |= {byte: chr(256 + number) for number, byte in enumerate(sorted(set(range(256)) - set(printable)))}


def written(data):
    return "".join(characters[byte] for byte in data)


def merged(token):
    """The two parts of which BPE makes a token, or None if no merges lead to it."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        rank, place = min((ranks.get(parts[place] + parts[place + 1], SIZE), place) for place in range(len(parts) - 1))
        if rank >= ranks[token]:
            return None
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return " ".join(map(written, parts))


writer = GGUFWriter("model.gguf", "llama")
writer.add_context_length(512)
writer.add_embedding_length(32)
writer.add_block_count(1)
writer.add_feed_forward_length(32)
writer.add_head_count(1)
writer.add_layer_norm_rms_eps(1e-6)
writer.add_tokenizer_model("gpt2")
writer.add_tokenizer_pre("tekken")
writer.add_token_list([written(token) for token in tokens])
writer.add_token_types([1] * SIZE)
writer.add_token_merges([pair for token in tokens if len(token) > 1 and (pair := merged(token))])
writer.add_bos_token_id(0)
writer.add_eos_token_id(0)
writer.add_add_bos_token(False)
writer.add_tensor("token_embd.weight", np.zeros((SIZE, 32), np.float16))
for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
    writer.add_tensor(f"blk.0.{name}.weight", np.zeros((32, 32), np.float32))
for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
    writer.add_tensor(f"{name}.weight", np.ones(32, np.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()

parameters = xllamacpp.CommonParams()
parameters.model.path = "model.gguf"
parameters.n_ctx = 512
parameters.warmup = False
server = xllamacpp.Server(parameters)
for text in SAME + OTHER:
    body = json.dumps({"content": text, "add_special": False}).encode()
    request = urllib.request.Request(f"{server.listening_address}/tokenize", body, {"Content-Type": "application/json"})
    found = json.load(urllib.request.urlopen(request))["tokens"]
    right = [token - SPECIAL for token in tekken.encode(text, bos=False, eos=False)]
    print(f"{len(right)} tokens, of llama.cpp {len(found)}, {'the same' if found == right else 'others'}: {text}")
    assert b"".join(tokens[token] for token in found).decode() == text
    assert (found == right) == (text in SAME) and (text in SAME or len(found) > 1.3 * len(right))
PYTHON
