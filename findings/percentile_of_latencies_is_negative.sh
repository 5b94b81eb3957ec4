#!/usr/bin/env bash
# tdigest 0.5.2.2, TDigest.update and TDigest.percentile, the t-digest that is written in Python.
#
# Input: times in whole milliseconds, as between two tokens: 99 times 20 and once 1000.
# Expected: the percentiles 1 to 98 are 20, as those of NumPy are, and none is below the smallest number.
# Seen: percentile(10) is -754, percentile(50) 29.8 and percentile(90) 814. The 99 equal numbers form one centroid. Between the middles of
# two centroids a straight line is drawn, and it continues to the left of the first one, past the minimum. With different fractions of a
# millisecond the same times give 20.0, 20.0 and 20.1.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tdigest==0.5.2.2 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import numpy as np
from tdigest import TDigest

PERCENTAGES = [1, 10, 50, 90]


def percentiles(times):
    digest = TDigest()
    for time in times:
        digest.update(time)
    found = [round(digest.percentile(percentage), 1) for percentage in PERCENTAGES]
    print(f"{len(digest)} centroids, percentiles {PERCENTAGES}: {found}, of NumPy: {np.percentile(times, PERCENTAGES).round(1).tolist()}")
    return found


whole = [20] * 99 + [1000]
assert percentiles(whole) == [-930.6, -754.2, 29.8, 813.8]
assert percentiles([20 + number / 1000 for number in range(99)] + [1000]) == [20.0, 20.0, 20.0, 20.1]
assert percentiles([20] * 50 + [30] * 50) == [15.2, 17.0, 25.0, 30.0]
PYTHON
