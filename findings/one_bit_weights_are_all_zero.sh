#!/usr/bin/env bash
# torchao 0.18.0 with torch 2.13.0 on the CPU, quantize_ with IntxWeightOnlyConfig, whose weights may have 1 to 8 bits; hqq 0.2.8.post1 for
# comparison.
#
# Input: a linear layer with 64 random weights per row, quantized to int1, int2, int3 and int4 with the default settings.
# Expected: int1 keeps two values per row, as the signs times a scale are; the largest weight of a row hardly changes with more bits.
# Seen: all weights of int1 are 0, and so is the output of the layer for every input. The scale is the largest magnitude divided by
# (2**bits - 1) / 2, so that every weight of int1 lies between -0.5 and 0.5, and rounds to 0. With more bits the largest positive weight
# lies half a step above the largest integer: it loses 1/3 in int2, 1/7 in int3 and 1/15 in int4. There is no message. HQQ keeps two values
# per row with one bit.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check \
    torch==2.13.0 torchao==0.18.0 hqq==0.2.8.post1 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - 2>"$folder/messages" <<'PYTHON' || { cat "$folder/messages"; exit 1; }
import torch
from hqq.core.quantize import Quantizer
from torchao.quantization import IntxWeightOnlyConfig, quantize_

torch.manual_seed(0)
weight, x = torch.randn(8, 64), torch.randn(3, 64)
weight[:, 5] = weight.abs().amax(1) * 1.01
for bits in range(4, 0, -1):
    model = torch.nn.Sequential(torch.nn.Linear(64, 8, bias=False))
    model[0].weight.data = weight.clone()
    quantize_(model, IntxWeightOnlyConfig(weight_dtype=getattr(torch, f"int{bits}")))
    found = model[0].weight.dequantize()
    rest = (found / weight)[:, 5]
    values = max(len(row.unique()) for row in found)
    other = Quantizer.quantize(weight.clone(), nbits=bits, axis=1, group_size=64, device="cpu", compute_dtype=torch.float32)
    other_values = max(len(row.unique()) for row in Quantizer.dequantize(*other))
    print(f"int{bits}: {values} values per row, of HQQ {other_values}; the largest weight is multiplied by {rest.mean():.3f}")
    assert torch.allclose(rest, torch.full((8,), 1 - 1 / (2**bits - 1)), atol=1e-5)
    assert bool((model(x) == 0).all()) == (bits == 1)
assert values == 1 and other_values == 2
PYTHON
