#!/usr/bin/env bash
# llama.cpp of October 2026 (xllamacpp 2026.10.11549), its engine for chat templates, beside Jinja2 3.1.6.
#
# Input: a chat template with lines that write a tool, all tools or a list of words, as templates for function calls do, and lines that use the
# length of the user's "été" or its first letter.
# Expected: the texts of Jinja2, for which templates are written: {'name': 'f', ...}, ['a', 'b'], 3 letters, and "é".
# Seen: a dictionary is written as nothing, and a list as its items with nothing between them, so that the model is told of no tool. With |string,
# |tojson or ~ both are right. Lengths are in bytes: "été" has 5, and its first letter is half of one, U+FFFD in the prompt. default() replaces
# none, too. There is no message.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check xllamacpp==2026.10.11549 gguf==0.19.0 jinja2==3.1.6 numpy==2.4.6
cd "$folder" # the model is written here
venv/bin/python -W ignore - 2>log <<'PYTHON' || { tail log && exit 1; }
import json
import urllib.request

import numpy as np
import xllamacpp
from gguf import GGUFWriter
from jinja2 import Environment

MESSAGES = [{"role": "user", "content": "été"}]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}]
TEMPLATES = {
    "{{ tools }}": "",
    "{% for tool in tools %}{{ tool.function }}{% endfor %}.": ".",
    "{{ ['a', 'b'] }}": "ab",
    "{{ messages[0].content|length }}": "5",
    "{{ messages[0].content[:1] }}": "\ufffd",
    "{{ none|default('d') }}.": "d.",
    "{% for tool in tools %}{{ 'tool: ' ~ tool.function }}{% endfor %}.": None,
    "{{ ['a', 'b']|string }}": None,
    "{{ ['a', 'b']|tojson }}": None,
}

writer = GGUFWriter("model.gguf", "llama")
writer.add_context_length(512)
writer.add_embedding_length(32)
writer.add_block_count(1)
writer.add_feed_forward_length(32)
writer.add_head_count(1)
writer.add_layer_norm_rms_eps(1e-6)
writer.add_tokenizer_model("gpt2")
writer.add_tokenizer_pre("gpt-2")
writer.add_token_list([chr(33 + token) for token in range(64)])
writer.add_token_types([1] * 64)
writer.add_token_merges(["! !"])
writer.add_bos_token_id(0)
writer.add_eos_token_id(0)
writer.add_chat_template("\n".join(TEMPLATES))
writer.add_tensor("token_embd.weight", np.zeros((64, 32), np.float32))
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
body = json.dumps({"messages": MESSAGES, "tools": TOOLS}).encode()
request = urllib.request.Request(f"{server.listening_address}/apply-template", body, {"Content-Type": "application/json"})
prompt = json.load(urllib.request.urlopen(request))["prompt"]
jinja = Environment()
jinja.filters["tojson"] = json.dumps  # as transformers does: without HTML's escapes
for (template, expected), found in zip(TEMPLATES.items(), prompt.split("\n"), strict=True):
    right = jinja.from_string(template).render(messages=MESSAGES, tools=TOOLS)
    print(f"{template}: {right!r}, of llama.cpp {found!r}")
    assert found == (right if expected is None else expected) and (found == right) == (expected is None)
PYTHON
