#!/usr/bin/env bash
# transformers 5.24.0 and 4.57.1: a config.json saved by the one, read by the other.
#
# Input: LlamaConfig(rope_theta=500000.0) and Gemma3TextConfig(rope_theta=2e6, rope_local_base_freq=20000.0), saved by 5.24.0.
# Expected: 4.57.1 reads the same theta, or says that the file is too new for it ("transformers_version": "5.24.0" stands in it).
# Seen: theta is 10000 for Llama, and 1000000 and 10000 for Gemma 3, the defaults of the classes, without a message. Version 5 writes theta
# into "rope_parameters" and no longer beside it; for version 4 that key is one of many that it keeps as it is. A scaling of RoPE is lost in
# the same way. Every weight is loaded, and the model's positions are wrong.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/save.py" <<'PYTHON'
from transformers import Gemma3TextConfig, LlamaConfig

scaling = {"rope_type": "linear", "factor": 4.0}
LlamaConfig(rope_theta=500000.0, rope_scaling=scaling).save_pretrained("llama")
Gemma3TextConfig(rope_theta=2e6, rope_local_base_freq=20000.0).save_pretrained("gemma3")
PYTHON
cat > "$folder/load.py" <<'PYTHON'
import json

from transformers import AutoConfig

found = {}
for name in ("llama", "gemma3"):
    config = AutoConfig.from_pretrained(name)
    found[name] = config.rope_theta, getattr(config, "rope_local_base_freq", None), config.rope_scaling
    print(name, "saved:", json.load(open(f"{name}/config.json"))["rope_parameters"], "read: (theta, local theta, scaling)", found[name])
assert found == {"llama": (10000.0, None, None), "gemma3": (1000000.0, 10000.0, None)}
PYTHON
cd "$folder"
run_with() {
    python3 -m venv --clear venv
    venv/bin/pip install --quiet --disable-pip-version-check "$1"
    venv/bin/python -W ignore "$2"
}
run_with transformers==5.24.0 save.py
run_with transformers==4.57.1 load.py
