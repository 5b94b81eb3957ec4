#!/usr/bin/env bash
# pyarrow 26.0.1 and duckdb 2.0.1, a filter for NaN on a Parquet file.
#
# Input: the losses of three steps, one of them NaN, written by pyarrow.parquet.write_table.
# Expected: the row with NaN, as from the same table in memory. The statistics of a Parquet file leave NaN out, and the format tells readers
# to ignore the smallest and the largest number if they look for NaN.
# Seen: both take the statistics for limits of all numbers. DuckDB finds no NaN in [0.5, NaN, 1]: `select loss, isnan(loss)` gives
# (NaN, false), `where isnan(loss)` gives nothing, nor does `loss > 100`, though NaN is the largest number in DuckDB's order, and max(loss) is
# 1, but NaN if the query asks for sum(loss) as well. pyarrow's is_nan finds this NaN, and none in [1, NaN, 1], where it takes the column for
# a constant; ~(loss <= 1) finds none in either. A file that DuckDB wrote has no such statistics if there is a NaN, and both find it there.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyarrow==26.0.1 duckdb==2.0.1
cd "$folder"
venv/bin/python - <<'PYTHON'
import math

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

loss = pc.field("loss")


def select(columns, rest):
    return duckdb.sql(f"select {columns} from {rest}").fetchall()


for numbers, is_constant in (([0.5, float("nan"), 1.0], False), ([1.0, float("nan"), 1.0], True)):
    losses = pa.table({"loss": numbers})
    pq.write_table(losses, "pyarrow.parquet")
    duckdb.sql("copy losses to 'duckdb.parquet'")
    by_row, largest = select("loss, isnan(loss)", "'pyarrow.parquet'"), select("max(loss)", "'pyarrow.parquet'")
    both = select("max(loss), sum(loss)", "'pyarrow.parquet'")
    print(numbers, "isnan:", by_row, "max:", largest, "max and sum:", both)
    assert [found for _, found in by_row] == [False, is_constant, False] and select("countif(isnan(loss))", "losses") == [(1,)]
    assert largest == [(1,)] and math.isnan(both[0][0]) and math.isnan(select("max(loss)", "losses")[0][0])
    for condition in ("isnan(loss)", "loss > 100"):
        found = [select("count(*)", f"{source} where {condition}")[0][0] for source in ("losses", "'duckdb.parquet'", "'pyarrow.parquet'")]
        print(f"  DuckDB, {condition}: {found} rows in memory, in its own file, in pyarrow's")
        assert found == [1, 1, 0]
    for condition, in_own_file in ((pc.is_nan(loss), int(not is_constant)), (~(loss <= 1), 0)):
        found = [losses.filter(condition).num_rows]
        found += [pq.read_table(file, filters=condition).num_rows for file in ("duckdb.parquet", "pyarrow.parquet")]
        print(f"  pyarrow, {condition}: {found} rows in memory, in DuckDB's file, in its own")
        assert found == [1, 1, in_own_file]
    written, unknown = (pq.read_metadata(file).row_group(0).column(0).statistics for file in ("pyarrow.parquet", "duckdb.parquet"))
    assert (written.min, written.max) == (numbers[0], 1) and not unknown.has_min_max
PYTHON
