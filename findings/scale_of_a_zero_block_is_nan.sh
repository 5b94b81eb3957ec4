#!/usr/bin/env bash
# torch 2.13.0 on the CPU and ml_dtypes 0.6.0: float8_e8m0fnu, the scale of the MX formats, and float4_e2m1fn, their elements.
#
# Input: 0, -4, 3 and infinity as scales; 0, 7, infinity and NaN as elements.
# Expected: E8M0 has powers of two and NaN, no zero and no sign. A scale of 0, that of a block of zeros, is the smallest one, and a negative
# number NaN, in both libraries. NaN, which E2M1 lacks, is not a number of it: an error, or the largest.
# Seen: torch drops the sign: -4 becomes 4; 0 becomes 2**-127. ml_dtypes gives NaN for both, so that a block of zeros whose scale it
# converts is read as NaN. Infinity is NaN in both. In float4_e2m1fn of ml_dtypes infinity becomes 6 and NaN becomes -0: a NaN in the
# weights is gone.
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

scales = np.array([0, -4, 3, np.inf], np.float32)
with np.errstate(invalid="ignore"):
    ours = scales.astype(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    elements = np.array([0, 7, np.inf, np.nan], np.float32).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
theirs = torch.from_numpy(scales).to(torch.float8_e8m0fnu).float().numpy()
print("scales", scales, "torch", theirs, "ml_dtypes", ours)
print("elements 0, 7, inf, NaN in ml_dtypes.float4_e2m1fn:", elements)
assert np.array_equal(theirs, [2.0**-127, 4, 4, np.nan], equal_nan=True)
assert np.array_equal(ours, [np.nan, np.nan, 4, np.nan], equal_nan=True)
assert elements.tolist() == [0, 6, 6, 0] and np.signbit(elements[3])
block = np.zeros(32, ml_dtypes.float4_e2m1fn).astype(np.float32) * ours[0]
print("a block of zeros, read with the scale of ml_dtypes:", np.unique(block))
assert np.isnan(block).all()
PYTHON
