#!/usr/bin/env bash
# transformers 5.24.0, configurations of Qwen2, Qwen3 and Qwen2-MoE: the same keys give opposite layers a sliding window, and the number of
# experts is saved under two names.
#
# Input: each family's configuration class with use_sliding_window=True, sliding_window=64, max_window_layers=3, num_hidden_layers=6; then
# Qwen2MoeConfig and Qwen3MoeConfig with num_experts=16, as save_pretrained writes them.
# Expected: layers 3, 4 and 5 have a window in all of them, as in Qwen2 ("max_window_layers: the number of layers using full attention"); and
# "num_experts": 16 in both files, the key that the argument has, and that Qwen/Qwen3-30B-A3B's own config.json has.
# Seen: Qwen2 and Qwen3 do so; Qwen2-MoE gives a window to every other layer BEFORE the third, layers 0 and 2. Qwen3-MoE saves
# "num_local_experts", and a reader of the published files finds no num_experts in it; Qwen2-MoE saves "num_experts".
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.24.0
"$folder/venv/bin/python" -W ignore - "$folder" <<'PYTHON'
import json
import sys
from pathlib import Path

import transformers

windows = dict(use_sliding_window=True, sliding_window=64, max_window_layers=3, num_hidden_layers=6)
found = {}
for name in ("Qwen2", "Qwen3", "Qwen2Moe"):
    kinds = getattr(transformers, f"{name}Config")(**windows).layer_types
    found[name] = [layer for layer, kind in enumerate(kinds) if kind == "sliding_attention"]
print("layers with a window:", found)
saved = {}
for name in ("Qwen2Moe", "Qwen3Moe"):
    getattr(transformers, f"{name}Config")(num_experts=16).save_pretrained(sys.argv[1])
    values = json.loads(Path(sys.argv[1], "config.json").read_text())
    saved[name] = [key for key, value in values.items() if value == 16 and key.endswith("experts")]
print("keys with the number of experts:", saved)
assert found == {"Qwen2": [3, 4, 5], "Qwen3": [3, 4, 5], "Qwen2Moe": [0, 2]}
assert saved == {"Qwen2Moe": ["num_experts"], "Qwen3Moe": ["num_local_experts"]}
PYTHON
