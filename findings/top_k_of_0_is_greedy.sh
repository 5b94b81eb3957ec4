#!/usr/bin/env bash
# onnxruntime-genai 0.18.0, search options top_k and top_p with do_sample=True.
#
# Input: a model that gives four tokens 40%, 30%, 20% and 10%, and 1,000 draws with each set of options.
# Expected: top_k=0 turns the limit off, as it does for transformers, and as top_p=0 does here; or it is refused.
# Seen: with top_k=0 alone every draw is the first token, at a temperature of 5, too. With top_k=0 and top_p=1.0, which changes nothing
# elsewhere, the draws are 40%, 30%, 20% and 10%. top_p=0 is off, and top_p=0.01 is the first token.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check onnxruntime-genai==0.18.0 onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
cd "$folder" # the model is written here
venv/bin/python -W ignore - <<'PYTHON'
import json

import numpy as np
import onnx
import onnxruntime_genai
from onnx import TensorProto, helper, numpy_helper

SIZE = 64
row = np.full(SIZE, -400, np.float32)
row[:4] = np.log([0.4, 0.3, 0.2, 0.1])
constants = {"logits_of": np.tile(row, (SIZE, 1)), "zero": np.array([0]), "one": np.array([1]), "two": np.array([2])}
nodes = [
    helper.make_node("Gather", ["logits_of", "input_ids"], ["logits"], axis=0),
    helper.make_node("Shape", ["input_ids"], ["shape"]),
    helper.make_node("Gather", ["shape", "zero"], ["batch"], axis=0),
    helper.make_node("Gather", ["shape", "one"], ["tokens"], axis=0),
    helper.make_node("Concat", ["batch", "one", "tokens", "two"], ["cache_shape"], axis=0),
    helper.make_node("ConstantOfShape", ["cache_shape"], ["new"]),
]
inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["b", name]) for name in ("input_ids", "attention_mask")]
outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", "s", SIZE])]
for kind in ("key", "value"):
    nodes.append(helper.make_node("Concat", [f"past.0.{kind}", "new"], [f"present.0.{kind}"], axis=2))
    inputs.append(helper.make_tensor_value_info(f"past.0.{kind}", TensorProto.FLOAT, ["b", 1, "p", 2]))
    outputs.append(helper.make_tensor_value_info(f"present.0.{kind}", TensorProto.FLOAT, ["b", 1, "t", 2]))
tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
graph = helper.make_graph(nodes, "constant", inputs, outputs, tensors)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), "model.onnx")
heads = {"head_size": 2, "hidden_size": 2, "num_attention_heads": 1, "num_hidden_layers": 1, "num_key_value_heads": 1}
names = {
    "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask", "past_key_names": "past.%d.key", "past_value_names": "past.%d.value"},
    "outputs": {"logits": "logits", "present_key_names": "present.%d.key", "present_value_names": "present.%d.value"},
}
tokens = {"bos_token_id": 62, "eos_token_id": 63, "pad_token_id": 63, "vocab_size": SIZE, "context_length": 32}
decoder = {"filename": "model.onnx", "session_options": {"provider_options": []}, **heads, **names}
with open("genai_config.json", "w") as file:
    json.dump({"model": {"type": "llama", **tokens, "decoder": decoder}, "search": {"max_length": 8}}, file)
model = onnxruntime_genai.Model(".")


def shares(**options):
    counts = [0] * 4
    for seed in range(1000):
        parameters = onnxruntime_genai.GeneratorParams(model)
        parameters.set_search_options(do_sample=True, random_seed=seed, max_length=2, **options)
        generator = onnxruntime_genai.Generator(model, parameters)
        generator.append_tokens(np.array([5], np.int32))
        generator.generate_next_token()
        counts[int(generator.get_sequence(0)[-1])] += 1
    print(f"{options or 'defaults'}: {[count / 1000 for count in counts]}")
    return counts


for options in ({}, {"top_k": 0, "top_p": 1.0}, {"top_p": 0.0}):
    assert 330 < shares(**options)[0] < 470
for options in ({"top_k": 0}, {"top_k": 0, "temperature": 5.0}, {"top_p": 0.01}):
    assert shares(**options)[0] == 1000
assert max(shares(temperature=5.0)) < 400
PYTHON
