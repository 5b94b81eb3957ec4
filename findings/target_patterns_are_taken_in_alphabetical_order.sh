#!/usr/bin/env bash
# compressed-tensors 0.20.0, apply_quantization_config, with torch 2.13.0.
#
# Input: a quantization config of two groups whose patterns both match the layer "attn.q_proj": first 8 bits for "re:.*q_proj", then 4 bits for
# "re:.*attn.*".
# Expected: the group that is listed first counts, or else the last.
# Seen: of several patterns the first in alphabetical order counts, whatever the order of the groups: "re:.*attn.*", 4 bits. A group named
# "re:(?:.*)q_proj", which matches the same layers, wins against it: "(" sorts before ".".
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check compressed-tensors==0.20.0 torch==2.13.0
"$folder/venv/bin/python" - <<'PYTHON'
import itertools

import torch
from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config


def bits_of_q(groups):
    """The bits of attn.q_proj, by groups (pattern, bits) in this order."""
    model = torch.nn.ModuleDict({"attn": torch.nn.ModuleDict({"q_proj": torch.nn.Linear(32, 32)})})
    schemes = {
        f"group_{number}": {"targets": [target], "weights": {"num_bits": bits, "strategy": "channel"}}
        for number, (target, bits) in enumerate(groups)
    }
    apply_quantization_config(model, QuantizationConfig(config_groups=schemes), show_progress=False)
    return model["attn"]["q_proj"].quantization_scheme.weights.num_bits


for wide, narrow, expected in (("re:.*attn.*", "re:.*q_proj", 4), ("re:.*attn.*", "re:(?:.*)q_proj", 8)):
    found = [bits_of_q(order) for order in itertools.permutations([(narrow, 8), (wide, 4)])]
    print(f"{narrow}: 8 bits, {wide}: 4 bits, in both orders of the groups: {found}")
    assert found == [expected, expected]
PYTHON
