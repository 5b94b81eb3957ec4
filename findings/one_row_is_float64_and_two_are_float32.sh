#!/usr/bin/env bash
# datasets 5.2.0 with pyarrow 26.0.1 and numpy 2.4.6, Dataset.with_format("numpy").
#
# Input: a column of float64, such as log probabilities or scores, one of float16, and one of lists of float64.
# Expected: arrays of the types that the features state, since NumPy has them all.
# Seen: dataset[0]["x"] is float64, dataset[:]["x"] float32: in a batch 1e300 is infinity, and 16777217 is 16777216. float16 becomes float32
# in a batch, too. A list is float32 in a row as well. iter(dataset) and dataset.iter(batch_size) differ in the same way, so the sum over
# rows is not the sum over batches of the same data. with_format("numpy", dtype=numpy.float64) gives the numbers.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check datasets==5.2.0 pyarrow==26.0.1 numpy==2.4.6
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import numpy as np
from datasets import Dataset, Features, List, Value

features = Features({"x": Value("float64"), "half": Value("float16"), "list": List(Value("float64"))})
numbers = [16777217.0, 1e300]
columns = {"x": numbers, "half": [1.0, 2.0], "list": [numbers, numbers]}
dataset = Dataset.from_dict(columns, features=features)
plain, wide = dataset.with_format("numpy"), dataset.with_format("numpy", dtype=np.float64)


def types(values):
    return {name: str(value.dtype) for name, value in values.items()}


print("features:", {name: str(feature) for name, feature in dataset.features.items()})
print("a row:   ", types(plain[0]))
print("a batch: ", types(plain[:]), plain[:]["x"])
assert types(plain[0])["half"] == "float16" and types(plain[0])["x"] == types(next(iter(plain)))["x"] == "float64"
assert types(plain[:])["x"] == types(next(plain.iter(2)))["x"] == types(plain[0])["list"] == types(plain[:])["half"] == "float32"
assert [row["x"].item() for row in plain] == numbers and plain[:]["x"].tolist() == [16777216, np.inf] and wide[:]["x"].tolist() == numbers
PYTHON
