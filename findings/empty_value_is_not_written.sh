#!/usr/bin/env bash
# gguf 0.19.0 (llama.cpp's Python package), GGUFWriter: values that are empty.
#
# Input: add_string("general.description", "") and add_array("tokenizer.ggml.merges", []), as a convertor passes on what a model's files
# say. GGUF has both: a string of length 0, and an array of 0 elements.
# Expected: the two keys with empty values, or an error.
# Seen: the keys are not in the file, without a message, and a reader that takes a missing key for a damaged file, or for its own default,
# does so. False, 0 and 0.0 are written; so is an array of one empty string. Tensors without elements are written, too.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check gguf==0.19.0 numpy==2.4.6
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys

import numpy as np
from gguf import GGUFReader, GGUFWriter

path = f"{sys.argv[1]}/model.gguf"
writer = GGUFWriter(path, "llama")
writer.add_string("empty.string", "")
writer.add_array("empty.array", [])
writer.add_array("array.of.one.empty.string", [""])
writer.add_bool("false", False)
writer.add_uint32("zero", 0)
writer.add_tensor("empty.tensor", np.zeros((0, 3), np.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
reader = GGUFReader(path)
keys = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
print(keys, [(tensor.name, tensor.shape.tolist()) for tensor in reader.tensors])
assert keys == {"general.architecture": "llama", "array.of.one.empty.string": [""], "false": False, "zero": 0}
assert [tensor.name for tensor in reader.tensors] == ["empty.tensor"]
PYTHON
