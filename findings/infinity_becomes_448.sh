#!/usr/bin/env bash
# torch 2.13.0 on the CPU and ml_dtypes 0.6.0: conversions to float8_e4m3fn of numbers beyond its largest, 448.
#
# Input: 448, 500, 1e9 and infinity, of float32.
# Expected: NaN from 500 on, since the format has no infinity: so do ml_dtypes, and torch's own float8_e4m3fnuz.
# Seen: torch gives 448 for all, infinity included, so that an overflow before the conversion cannot be seen after it. NaN stays NaN.
# torch's float8_e5m2 keeps infinity, and gives it for 1e9, too: of one library three 8-bit formats have three answers.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 ml_dtypes==0.6.0
"$folder/venv/bin/python" - <<'PYTHON'
import ml_dtypes
import numpy as np
import torch

numbers = [448.0, 500.0, 1e9, float("inf")]
found = {name: torch.tensor(numbers).to(getattr(torch, name)).float().tolist() for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2")}
found["ml_dtypes"] = np.array(numbers, np.float32).astype(ml_dtypes.float8_e4m3fn).astype(float).tolist()
for name, values in found.items():
    print(name, values)
assert found["float8_e4m3fn"] == [448.0] * 4
assert np.isnan(found["float8_e4m3fnuz"]).all()  # its largest number is 240
assert found["float8_e5m2"][2:] == [float("inf")] * 2
assert found["ml_dtypes"][0] == 448 and np.isnan(found["ml_dtypes"][1:]).all()
assert torch.tensor(float("nan")).to(torch.float8_e4m3fn).isnan()
PYTHON
