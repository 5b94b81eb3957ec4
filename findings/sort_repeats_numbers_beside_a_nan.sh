#!/usr/bin/env bash
# tinygrad 0.14.0 on the device PYTHON, Tensor.sort, argsort and topk of float32 with a NaN.
#
# Input: 1, 3, 2, 5, NaN, 4, 0, 6, and shorter lists; sort is a network of max and min that tinygrad builds for every device.
# Expected: a sorted list with NaN at one end, as in NumPy and torch; at worst the eight numbers out of order.
# Seen: 0, 1, 0, 3, 2, 6, 5, 6: NaN and 4 are gone, 0 and 6 come twice, and the rest is not sorted. The positions that sort and argsort
# return are 6, 0, 0, 1, 2, 7, 3, 0, no permutation, so that a gather by them repeats rows. With NaN in the first place all of
# [NaN, 1, 3, 2] become NaN, at position 0. Pairs are put in order by max and min; beside a NaN both may yield the same number, which then
# stands in both places. Without NaN all is right.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tinygrad==0.14.0 numpy==2.4.6
DEV=PYTHON CACHEDB="$folder/cache.db" "$folder/venv/bin/python" - <<'PYTHON'
import math

import numpy as np
from tinygrad import Tensor

nan = math.nan
EXPECTED = {
    (1.0, 3.0, 2.0, 5.0, 7.0, 4.0, 0.0, 6.0): [0, 1, 2, 3, 4, 5, 6, 7],
    (1.0, 3.0, 2.0, 5.0, nan, 4.0, 0.0, 6.0): [0, 1, 0, 3, 2, 6, 5, 6],
    (1.0, nan, 3.0, 2.0): [1, 1, 2, 3],
    (3.0, 2.0, 1.0, nan): [2, 3, 2, 3],
    (nan, 1.0, 3.0, 2.0): [nan] * 4,
}
for numbers, expected in EXPECTED.items():
    x = Tensor(list(numbers))
    values, positions = x.sort()
    best = x.topk(2)
    print(list(numbers), "sort", values.tolist(), positions.tolist(), "topk", best[0].tolist(), best[1].tolist())
    assert np.array_equal(values.numpy(), expected, equal_nan=True) and x.argsort().tolist() == positions.tolist()
    assert (sorted(positions.tolist()) == list(range(len(numbers)))) == (not any(map(math.isnan, numbers)))
PYTHON
