#!/usr/bin/env bash
# llama.cpp of October 2026 (xllamacpp 2026.10.11549), /v1/chat/completions with a last message of the assistant, which the model continues.
#
# Input: a model that writes "x", "y", "z" and its end behind "Q", and the messages "a" of the user and "Q" of the assistant; as a whole answer
# and as a stream.
# Expected: "xyz" both times, or "Qxyz" both times; it counts four tokens.
# Seen: the whole answer is "Qxyz", and the stream gives "x", "y" and "z". A client that puts its prefix before the answer, as a stream needs it,
# has it twice in the other case: a JSON text begins with "{{". Without the last message both are "xyz".
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check xllamacpp==2026.10.11549 gguf==0.19.0 numpy==2.4.6
cd "$folder" # the model is written here
venv/bin/python -W ignore - 2>log <<'PYTHON' || { tail log && exit 1; }
import json
import urllib.request

import numpy as np
import xllamacpp
from gguf import GGUFWriter

SIZE = 96
TOKENS = [chr(33 + token) for token in range(94)] + ["unused", "end"]
FOLLOWS = {"]": "x", "Q": "x", "x": "y", "y": "z", "z": "end"}  # the template ends with "]" before an answer
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"

output = np.zeros((SIZE, SIZE), np.float32)
for token, following in FOLLOWS.items():
    output[TOKENS.index(following), TOKENS.index(token)] = 1
writer = GGUFWriter("model.gguf", "llama")
writer.add_context_length(512)
writer.add_embedding_length(SIZE)
writer.add_block_count(1)
writer.add_feed_forward_length(32)
writer.add_head_count(1)
writer.add_layer_norm_rms_eps(1e-6)
writer.add_tokenizer_model("gpt2")
writer.add_tokenizer_pre("gpt-2")
writer.add_token_list(TOKENS)
writer.add_token_types([1] * (SIZE - 1) + [3])
writer.add_token_merges(["! !"])
writer.add_bos_token_id(SIZE - 1)
writer.add_eos_token_id(SIZE - 1)
writer.add_add_bos_token(False)
writer.add_chat_template(TEMPLATE)
writer.add_tensor("token_embd.weight", np.eye(SIZE, dtype=np.float32))
writer.add_tensor("output.weight", output)
for name in ("attn_q", "attn_k", "attn_v", "attn_output"):  # the layer adds nothing, so that the last token alone decides the next
    writer.add_tensor(f"blk.0.{name}.weight", np.zeros((SIZE, SIZE), np.float32))
for name, shape in (("ffn_gate", (32, SIZE)), ("ffn_up", (32, SIZE)), ("ffn_down", (SIZE, 32))):
    writer.add_tensor(f"blk.0.{name}.weight", np.zeros(shape, np.float32))
for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
    writer.add_tensor(f"{name}.weight", np.ones(SIZE, np.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()

parameters = xllamacpp.CommonParams()
parameters.model.path = "model.gguf"
parameters.n_ctx = 512
parameters.warmup = False
server = xllamacpp.Server(parameters)


def answers(messages):
    """The whole answer, the pieces of the stream, and the number of tokens."""
    texts = []
    for stream in (False, True):
        body = json.dumps({"messages": messages, "temperature": 0, "max_tokens": 8, "stream": stream}).encode()
        url = f"{server.listening_address}/v1/chat/completions"
        texts.append(urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"})).read())
    whole = json.loads(texts[0])
    lines = [json.loads(line[6:]) for line in texts[1].decode().splitlines() if line.startswith("data: {")]
    pieces = [line["choices"][0]["delta"].get("content") for line in lines if line["choices"]]
    found = whole["choices"][0]["message"]["content"], [piece for piece in pieces if piece], whole["usage"]["completion_tokens"]
    print(f"{messages}: whole {found[0]!r}, stream {found[1]}, {found[2]} tokens")
    return found


question = [{"role": "user", "content": "a"}]
assert answers(question) == ("xyz", ["x", "y", "z"], 4)
assert answers([*question, {"role": "assistant", "content": "Q"}]) == ("Qxyz", ["x", "y", "z"], 4)
PYTHON
