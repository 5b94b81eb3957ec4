#!/usr/bin/env bash
# polars 2.1.0: means, sums and products of int8 columns, such as quantized weights.
#
# Input: two int8 columns of 100 times 100.
# Expected: sums that do not overflow, as `sum()` gives them in int64, and a mean of 100.
# Seen: `mean_horizontal` of 100 and 100 is -28.0, `sum_horizontal` -56, and `dot` of 100 such numbers 1600 instead of 1,000,000. `sum()` and
# `rolling_sum` are right.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check polars==2.1.0 numpy==2.4.6
POLARS_MAX_THREADS=1 "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import numpy as np
import polars as pl

hundreds = np.full(100, 100, np.int8)
frame = pl.DataFrame({"x": hundreds, "y": hundreds})
found = {
    "sum": frame["x"].sum(),
    "rolling_sum": frame["x"].rolling_sum(100)[-1],
    "sum_horizontal": frame.select(pl.sum_horizontal("x", "y")).item(0, 0),
    "mean_horizontal": frame.select(pl.mean_horizontal("x", "y")).item(0, 0),
    "dot": frame["x"].dot(frame["y"]),
}
print("int8 columns of 100:", found)
assert found == {"sum": 10_000, "rolling_sum": 10_000, "sum_horizontal": -56, "mean_horizontal": -28.0, "dot": 1600}
PYTHON
