#!/usr/bin/env bash
# llama.cpp of October 2026 (xllamacpp 2026.10.11549) on the CPU, output matrices in F32, F16, Q8_0 and TQ2_0.
#
# Input: a hidden state with one number of 1,000 and, after it, 1.5, 1 and 1.2, the last one 38 places further; an output matrix whose rows "#",
# "$" and "%" take one of the three each, with weights that each of the types stores as they are.
# Expected: "#" with a probability of 99% from each type, as a product of the numbers that gguf's dequantize returns would give.
# Seen: from F32 and F16. With Q8_0 the answer is "%", and "#" and "$" are as likely as tokens with no weight at all: the activations are rounded to
# eight bits, too, in blocks of 32, so that beside 1,000 all below 4 is 0; 1.2 lies in another block. With TQ2_0 blocks have 256 numbers, and
# all three are lost. Hidden states of large models do have such outliers.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check xllamacpp==2026.10.11549 gguf==0.19.0 numpy==2.4.6
cd "$folder" # the model is written here
cat >probabilities.py <<'PYTHON'
import json
import sys
import urllib.request

import numpy as np
import xllamacpp
from gguf import GGMLQuantizationType, GGUFWriter, quants

SIZE, WIDTH = 64, 256
kind = GGMLQuantizationType[sys.argv[1]]
state = np.zeros(WIDTH, np.float32)
state[[0, 1, 2, 40]] = 1000, 1.5, 1, 1.2
output = np.zeros((SIZE, WIDTH), np.float32)
output[[2, 3, 4], [1, 2, 40]] = 1016  # of "#", "$" and "%"; 127 times a power of two
stored = quants.quantize(output, kind)
assert (quants.dequantize(stored, kind) == output).all()

writer = GGUFWriter("model.gguf", "llama")
writer.add_context_length(512)
writer.add_embedding_length(WIDTH)
writer.add_block_count(1)
writer.add_feed_forward_length(WIDTH)
writer.add_head_count(4)
writer.add_layer_norm_rms_eps(1e-6)
writer.add_tokenizer_model("gpt2")
writer.add_tokenizer_pre("gpt-2")
writer.add_token_list([chr(33 + token) for token in range(SIZE)])
writer.add_token_types([1] * SIZE)
writer.add_token_merges(["! !"])
writer.add_bos_token_id(SIZE - 1)
writer.add_eos_token_id(SIZE - 1)
writer.add_add_bos_token(False)
writer.add_tensor("token_embd.weight", np.tile(state, (SIZE, 1)))
writer.add_tensor("output.weight", stored, raw_dtype=kind)
for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):  # the layer adds nothing
    writer.add_tensor(f"blk.0.{name}.weight", np.zeros((WIDTH, WIDTH), np.float32))
for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
    writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()

parameters = xllamacpp.CommonParams()
parameters.model.path = "model.gguf"
parameters.n_ctx = 512
parameters.warmup = False
server = xllamacpp.Server(parameters)
body = json.dumps({"prompt": "A", "n_predict": 1, "temperature": 0, "n_probs": SIZE}).encode()
request = urllib.request.Request(f"{server.listening_address}/completion", body, {"Content-Type": "application/json"})
entries = json.load(urllib.request.urlopen(request))["completion_probabilities"][0]["top_logprobs"]
found = {entry["token"]: float(np.exp(entry["logprob"])) for entry in entries}
print(f"{kind.name}: " + ", ".join(f"{token} {found[token]:.2g}" for token in "#$%A"))
if kind.name in ("F32", "F16"):
    assert found["#"] > 0.98
elif kind.name == "Q8_0":
    assert found["%"] > 0.98 and found["#"] == found["$"] == found["A"]
else:
    assert found["#"] == found["$"] == found["%"] == found["A"]
PYTHON
for kind in F32 F16 Q8_0 TQ2_0; do
    venv/bin/python -W ignore probabilities.py $kind 2>log || { tail log && exit 1; }
done
