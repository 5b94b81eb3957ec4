#!/usr/bin/env bash
# ml_dtypes 0.6.0 with NumPy 2.4.6: np.round with decimals.
#
# Input: [1, 2, 0.5, 4, 1.5], which all types hold exactly, rounded to 1, 2 and 3 decimals; 100 and 1000 in float16.
# Expected: the same numbers, since rounding to two decimals changes no number that has one.
# Seen: to two decimals 1 is 0.9375 in float8_e4m3fn, infinity in float8_e3m4, 0.25 in float6_e3m2fn, and 0 in float4_e2m1fn, where every
# number becomes 0; to three decimals all are NaN in float8_e4m3fn, and 1.5 is 1.5078125 in bfloat16. NumPy multiplies by 100, rounds and
# divides by 100, all in the type of the array, which may have no 100: the factor is 96, infinity, or the largest number, which is 6.
# No message comes. float16 fares the same with larger numbers, and there a RuntimeWarning comes: 1000 to two decimals is infinity, and
# 100 to three, so that a printed table of rounded times has infinities in it. f"{x:.2f}" is right.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check ml_dtypes==0.6.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import warnings

import ml_dtypes
import numpy as np

NUMBERS = [1, 2, 0.5, 4, 1.5]
INFINITY, NAN = float("inf"), float("nan")


def rounded(numbers, dtype, decimals):
    """The rounded numbers, and whether a warning came."""
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        found = np.round(np.array(numbers, dtype), decimals).astype(float).tolist()
    print(f"{np.dtype(dtype)}: {numbers} to {decimals} decimals: {found}{', with a warning' if messages else ''}")
    return found, bool(messages)


for dtype, decimals, expected in (
    (ml_dtypes.bfloat16, 2, NUMBERS),
    (ml_dtypes.bfloat16, 3, [1, 2, 0.5, 4, 1.5078125]),
    (ml_dtypes.float8_e5m2, 2, NUMBERS),
    (ml_dtypes.float8_e4m3fn, 1, NUMBERS),
    (ml_dtypes.float8_e4m3fn, 2, [0.9375, 1.875, 0.46875, 3.75, 1.5]),
    (ml_dtypes.float8_e4m3fn, 3, [NAN] * 5),
    (ml_dtypes.float8_e3m4, 2, [INFINITY] * 5),
    (ml_dtypes.float6_e3m2fn, 2, [0.25] * 5),
    (ml_dtypes.float4_e2m1fn, 1, [0.5] * 5),
    (ml_dtypes.float4_e2m1fn, 2, [0] * 5),
):
    found, warned = rounded(NUMBERS, dtype, decimals)
    assert np.array_equal(found, expected, equal_nan=True) and not warned
assert rounded([100, 1000], np.float16, 2) == ([100, INFINITY], True)
assert rounded([100, 1000], np.float16, 3) == ([INFINITY, INFINITY], True)
assert rounded([100, 1000], np.float32, 3) == ([100, 1000], False)
assert f"{np.float16(1000):.2f}" == "1000.00"
PYTHON
