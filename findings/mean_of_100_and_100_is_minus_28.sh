#!/usr/bin/env bash
# polars 2.1.0: means, sums and products of int8 and float32 columns, such as quantized weights or scores.
#
# Input: int8 columns of 100; and 2**25 ones in float32, as one column and as one group.
# Expected: sums of int8 that do not overflow, as `sum()` gives them in int64; and the same sum for a column and for a group that is the column.
# Seen: `mean_horizontal` of 100 and 100 is -28.0, `sum_horizontal` -56, and `dot` of 100 such numbers 1600 instead of 1,000,000. `sum()` and
# `rolling_sum` are right. The sum of the float32 column is 33554432, and that of its only group 16777216, at which adding ones stops; with two
# threads or more it is another number at each run. The mean of the group is 1.0 all the same.
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

ones = pl.DataFrame({"group": np.zeros(2**25, np.int8), "x": np.ones(2**25, np.float32)})
((_, total, mean),) = ones.group_by("group").agg(pl.col("x").sum().alias("sum"), pl.col("x").mean().alias("mean")).rows()
print(f"2**25 ones in float32: sum {ones['x'].sum()}, of the group {total}, mean of the group {mean}")
assert ones["x"].sum() == 2**25 and total == 2**24 and mean == 1.0
PYTHON
