#!/usr/bin/env bash
# xgrammar 0.2.9, apply_token_bitmask_inplace on the CPU, with torch 2.13.0.
#
# Input: the logits of two sequences, 40 tokens each, and a mask that allows tokens 3 and 7 of the first and token 20 of the second. The
# layout of the logits varies: contiguous, rows or every other column of a larger tensor, and transposed, as (head @ hidden.T).T is.
# Expected: only the allowed tokens are left, whatever the strides of the logits, or an error asks for a contiguous tensor.
# Seen: the backend "cpu", which "auto" picks here, uses the stride of the rows and ignores that of the columns. In a transposed tensor and
# in every other column it masks the wrong numbers: forbidden tokens stay and allowed ones are lost, without a message. The backend
# "torch_native" is right.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check xgrammar==0.2.9 torch==2.13.0
"$folder/venv/bin/python" - <<'PYTHON'
import torch
import xgrammar

ALLOWED = [[3, 7], [20]]
LAYOUTS = {
    "contiguous": torch.zeros(2, 40),
    "rows of a larger tensor": torch.zeros(2, 64)[:, :40],
    "every other column": torch.zeros(2, 80)[:, ::2],
    "transposed": torch.zeros(40, 2).T,
}
bitmask = torch.zeros_like(xgrammar.allocate_token_bitmask(2, 40))
for row, tokens in enumerate(ALLOWED):
    for token in tokens:
        bitmask[row, token // 32] |= 1 << token % 32
for name, logits in LAYOUTS.items():
    for backend in ("auto", "torch_native"):
        masked = torch.empty_strided(logits.shape, logits.stride()).zero_()
        xgrammar.apply_token_bitmask_inplace(masked, bitmask, backend=backend)
        left = [row.isfinite().nonzero().flatten().tolist() for row in masked]
        print(f"{name}, strides {masked.stride()}, {backend}: {left}")
        assert (left == ALLOWED) == (backend == "torch_native" or masked.stride(1) == 1)
PYTHON
