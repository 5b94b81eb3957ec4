#!/usr/bin/env bash
# torchao 0.18.0 and optimum-quanto 0.2.7 with torch 2.13.0 on the CPU: weights in float8 with a row of zeros.
#
# Input: a linear layer of which one row is 0, as a pruned neuron or the row of an unused token is, in float32, float16 and bfloat16;
# quantize_ with Float8WeightOnlyConfig, and quantize with qfloat8.
# Expected: zeros, which float8 holds exactly; eight-bit integers of the same two libraries give them.
# Seen: the row is NaN, and so is its output for every input, without a message. Its scale is the largest magnitude divided by 448, which is
# 0, and 0 / 0 is NaN. One NaN among the logits makes all probabilities NaN.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check \
    torch==2.13.0 torchao==0.18.0 optimum-quanto==0.2.7 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - 2>"$folder/messages" <<'PYTHON' || { cat "$folder/messages"; exit 1; }
import torch
from optimum.quanto import freeze, qfloat8, qint8, quantize
from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, quantize_


def quanto(kind):
    def apply(model):
        quantize(model, weights=kind)
        freeze(model)

    return apply


METHODS = {
    "torchao int8": lambda model: quantize_(model, Int8WeightOnlyConfig()),
    "torchao float8": lambda model: quantize_(model, Float8WeightOnlyConfig()),
    "quanto int8": quanto(qint8),
    "quanto float8": quanto(qfloat8),
}
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    for name, method in METHODS.items():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(64, 6, bias=False)).to(dtype)
        x = torch.randn(1, 64, dtype=dtype)
        with torch.no_grad():
            model[0].weight[3] = 0
            before = model(x)[0]
            method(model)
            after = model(x)[0]
        print(dtype, name, "row 3:", model[0].weight.dequantize()[3, :3].tolist(), "outputs:", after.tolist())
        wrong = torch.isnan(after).tolist()
        assert wrong == [place == 3 and "float8" in name for place in range(6)]
        assert (after - before).abs()[[0, 1, 2, 4, 5]].max() < 0.1
PYTHON
