#!/usr/bin/env bash
# gguf 0.19.0 (llama.cpp's Python package), gguf.quants: Q8_0 and Q4_0 of small weights.
#
# Input: normal numbers times 1e-2, 1e-5, 2e-6 and 1e-6, quantized and dequantized. float16 holds them with an error of 2% at most, bfloat16
# of 0.2%. One matrix of a LoRA adapter starts at 0 and moves by about the learning rate per step, so its weights can be this small.
# Expected: an error that is relative to the block, since each block has a scale: 0.5% for eight bits and 9% for four at every size.
# Seen: Q8_0 has an error of 9% for 1e-5, 66% for 2e-6, and 100% for 1e-6, where nearly all is 0. Q4_0 has 9% to 11% throughout, Q5_0 4% to
# 12%. The scale is a float16: for Q8_0 a 127th of the largest weight, 16 times smaller than for Q4_0, which has an eighth, and soon below
# the smallest float16. Numbers are divided by the scale before it is rounded, and multiplied by the rounded one.
# At the other end 1e7 becomes infinity in both, and a 0 in its block NaN.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check gguf==0.19.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import numpy as np
from gguf import GGMLQuantizationType, quants

normal = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)


def read_back(weights, name):
    kind = GGMLQuantizationType[name]
    return quants.dequantize(quants.quantize(weights, kind), kind)


def errors(size):
    """By format: the norm of the error in percent of the norm of the weights."""
    weights = normal * np.float32(size)
    found = {}
    for name in ("Q8_0", "Q5_0", "Q4_0", "F16", "BF16"):
        found[name] = 100 * float(np.linalg.norm(read_back(weights, name) - weights) / np.linalg.norm(weights))
    print(f"{size:.0e}", {name: f"{error:.2f}%" for name, error in found.items()})
    return found


at = {size: errors(size) for size in (1e-2, 1e-5, 2e-6, 1e-6)}
assert at[1e-2]["Q8_0"] < 0.6 and 9 < at[1e-5]["Q8_0"] < 10 and 60 < at[2e-6]["Q8_0"] < 70 and at[1e-6]["Q8_0"] > 99
assert all(8 < found["Q4_0"] < 11 and found["F16"] < 2 and found["BF16"] < 0.2 for found in at.values())
assert at[1e-5]["Q5_0"] < at[1e-5]["Q4_0"] < at[1e-5]["Q8_0"]
large = np.array([[1e7, 0] + [1e6] * 30], np.float32)
print("1e7 and 0:", {name: read_back(large, name)[0, :2].tolist() for name in ("Q8_0", "Q4_0")})
assert all(np.isinf(read_back(large, name)[0, 0]) and np.isnan(read_back(large, name)[0, 1]) for name in ("Q8_0", "Q4_0"))
PYTHON
