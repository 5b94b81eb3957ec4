#!/usr/bin/env bash
# huggingface_hub 2.4.0, save_torch_state_dict, with torch 2.13.0 and safetensors 0.8.0.
#
# Input: a state dict in which "embed" and "lm_head" are one tensor, saved twice, as a training loop saves a dictionary that it keeps; and
# one in which "q", "k" and "v" are thirds of one buffer.
# Expected: the dictionary stays as it was, and both files are the same; q, k and v are written, as safetensors.torch.save_file writes
# them: they share no number.
# Seen: the first call deletes "lm_head" from the caller's dictionary. The first file says in its metadata that lm_head is embed, the
# second has no trace of it: a reader that asks for lm_head finds neither the tensor nor the note. The thirds are refused as shared memory
# ("None is covering the entire storage"), even "q" alone, and so is every second element of a tensor.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check huggingface_hub==2.4.0 safetensors==0.8.0 torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys

import torch
from huggingface_hub import save_torch_state_dict
from safetensors import safe_open
from safetensors.torch import load_file, save_file

embedding = torch.ones(3, 4)
weights = {"embed": embedding, "lm_head": embedding, "norm": torch.ones(4)}
for metadata in ({"format": "pt", "lm_head": "embed"}, {"format": "pt"}):
    save_torch_state_dict(weights, sys.argv[1])
    with safe_open(sys.argv[1] + "/model.safetensors", "pt") as file:
        print(f"the caller's dictionary: {list(weights)}, the file: {list(file.keys())}, its metadata: {file.metadata()}")
        assert file.metadata() == metadata and list(weights) == ["embed", "norm"]

buffer = torch.arange(12.0)
thirds = {"q": buffer[:4], "k": buffer[4:8], "v": buffer[8:]}
save_file(thirds, sys.argv[1] + "/thirds.safetensors")
assert all(torch.equal(thirds[name], tensor) for name, tensor in load_file(sys.argv[1] + "/thirds.safetensors").items())
for refused in (thirds, {"q": buffer[:4]}, {"even": buffer[::2]}):
    try:
        save_torch_state_dict(refused, sys.argv[1])
        raise AssertionError(f"{list(refused)} is saved")
    except RuntimeError as error:
        print(f"{list(refused)}: {str(error)[:150]}")
        assert "None is covering the entire storage" in str(error)
PYTHON
