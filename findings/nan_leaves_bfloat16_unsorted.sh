#!/usr/bin/env bash
# ml_dtypes 0.6.0 with numpy 2.4.6: NaN in arrays of bfloat16.
#
# Input: [3, NaN, 1, 2], and [1, NaN, inf].
# Expected: what NumPy does for float16 and float32: sort puts NaN last, nan_to_num replaces it, assert_array_equal takes NaN for equal to
# NaN.
# Seen: sort, argsort and unique leave 3 and NaN in front of 1 and 2, so the numbers themselves are not in order. nan_to_num returns the
# array as it was, NaN and infinity included, without a message. assert_array_equal(x, x) fails, and assert_allclose(x, x) passes. np.isnan
# is right: the comparisons of the type have no place for NaN, and np.issubdtype(bfloat16, np.inexact) is False, by which nan_to_num
# decides. The float8 types of ml_dtypes fare the same.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check numpy==2.4.6 ml_dtypes==0.6.0
"$folder/venv/bin/python" - <<'PYTHON'
import ml_dtypes
import numpy as np


def seen(dtype):
    x, y = np.array([3, np.nan, 1, 2], dtype), np.array([1, np.nan, np.inf], dtype)
    try:
        np.testing.assert_array_equal(x, x)
        equal = True
    except AssertionError:
        equal = False
    np.testing.assert_allclose(x, x)
    assert np.isnan(x).tolist() == [False, True, False, False]
    with np.errstate(all="ignore"):
        found = [array.astype(float).tolist() for array in (np.sort(x), x[np.argsort(x)], np.unique(x), np.nan_to_num(y))]
    return str([*found, equal])


for dtype in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2):
    print(f"{np.dtype(dtype)}: sort, argsort, unique, nan_to_num, equal to itself: {seen(dtype)}")
lost, unsorted = "[1.0, 0.0, 65504.0]", "[3.0, nan, 1.0, 2.0]"
ordered = "[1.0, 2.0, 3.0, nan]"
assert seen(np.float16) == f"[{ordered}, {ordered}, {ordered}, {lost}, True]"
for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e5m2):
    assert seen(dtype) == f"[{unsorted}, {unsorted}, {unsorted}, [1.0, nan, inf], False]"
PYTHON
