#!/usr/bin/env bash
# ml_dtypes 0.6.0 with NumPy 2.4.6: arithmetic of int4 and uint4.
#
# Input: arrays of int4 and uint4, as unpacked weights of four bits are, in sums, products, negations, shifts, and dot products.
# Expected: one rule: all results are four bits wide and wrap, as jax computes; or all are wider, as NumPy adds int8 up in int64.
# Seen: it depends on the operator, without a message. x + x, x - x and x * x are int4 and wrap; -x, abs(x), x & x, x << 1, x ** 2 and
# max are int8: 4 * 4 is 0, and 4 ** 2 is 16; x * x of -8 is 0, and x * 2 is -16. Of ten sevens the sum is 6, the mean 0, dot(x, x) -6,
# and x @ x -22, in int8, where 490 is right. 0 - x is int8 if the 0 is Python's, and int4 if it is an array.
# A uint4 becomes int8, too: 15 << 4, the upper half of a packed byte, is -16. -x of an array of 3 is -3, and of a scalar 3 it is 13.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check ml_dtypes==0.6.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from ml_dtypes import int4, uint4

fours, sevens, lowest = np.array([4], int4), np.array([7] * 10, int4), np.array([-8], int4)
fifteens, threes = np.array([15], uint4), np.array([3], uint4)
for text, value, kind in (
    ("fours * fours", 0, int4),
    ("fours ** 2", 16, np.int8),
    ("np.square(fours)", 16, np.int8),
    ("fours + fours", -8, int4),
    ("fours << 1", 8, np.int8),
    ("lowest * lowest", 0, int4),
    ("lowest * 2", -16, np.int8),
    ("-lowest", 8, np.int8),
    ("0 - lowest", 8, np.int8),
    ("np.array(0, int4) - lowest", -8, int4),
    ("sevens & sevens", 7, np.int8),
    ("sevens.max()", 7, np.int8),
    ("sevens.sum()", 6, int4),
    ("sevens.mean()", 0, int4),
    ("np.dot(sevens, sevens)", -6, int4),
    ("sevens @ sevens", -22, np.int8),
    ("sevens.astype(np.int32) @ sevens.astype(np.int32)", 490, np.int32),
    ("fifteens << 4", -16, np.int8),
    ("-threes", -3, np.int8),
    ("-threes[0]", 13, uint4),
):
    result = np.asarray(eval(text))
    print(f"{text}: {result.flat[0]} ({result.dtype})")
    assert int(result.flat[0]) == value and result.dtype == kind
PYTHON
