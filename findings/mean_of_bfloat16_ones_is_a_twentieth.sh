#!/usr/bin/env bash
# ml_dtypes 0.6.0 with numpy 2.4.6: reductions of bfloat16 and float8_e4m3fn.
#
# Input: 5,000 ones. NumPy sums float16 in float32, so that sum is 5000 and mean is 1.
# Expected: the same of bfloat16 and float8; np.dot(x, x) is x @ x.
# Seen: mean and average are 0.0512695 for bfloat16 and 0.00390625 for float8_e4m3fn, because sum adds in the dtype itself, one element after
# the other, and stops at 256 and 16, where adding 1 changes nothing. x @ x is 5000, of dtype float32; x.dot(x) is 4992 for bfloat16, of
# dtype bfloat16, and NaN for float8_e4m3fn, because it returns the inputs' dtype, whose largest number is 448. var and std are as wrong.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check numpy==2.4.6 ml_dtypes==0.6.0
"$folder/venv/bin/python" - <<'PYTHON'
import ml_dtypes
import numpy as np


def reductions(dtype):
    x = np.ones(5000, dtype)
    found = dict(sum=x.sum(), mean=x.mean(), average=np.average(x), matmul=x @ x, dot=x.dot(x))
    print(np.dtype(dtype).name, {name: f"{value} {value.dtype}" for name, value in found.items()})
    return [float(value) for value in found.values()]


assert reductions(np.float16) == [5000, 1, 1, 5000, 5000]
assert reductions(ml_dtypes.bfloat16) == [256, 0.05126953125, 0.05126953125, 5000, 4992]
*others, dot = reductions(ml_dtypes.float8_e4m3fn)
assert others == [16, 0.00390625, 0.00390625, 5000] and np.isnan(dot)
PYTHON
