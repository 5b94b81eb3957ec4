#!/usr/bin/env bash
# usearch 2.26.6, Index with dtype="i8" and the metrics "ip" and "l2sq".
#
# Input: the vectors [3, 4], [0.3, 0.4], [300, 400] and [4, 3]; then 1,000 random vectors of 64 numbers whose lengths differ by a factor of
# two or so, as float32 and as int8.
# Expected: one scale for all vectors, or numbers beyond the range of int8 cut off or refused; distances near those of float32.
# Seen: each vector is divided by its own length and multiplied by 127, whatever the metric, without a message: the first three are all
# [76, 101], and their L2 distance is 0. The length is stored nowhere. Of the ten nearest by L2 or inner product 34% and 27% are found,
# where float8 finds 95%. The distances are in units of 127 * 127: a vector with itself has an "ip" of -15351 instead of 0. An int8 array
# is stored as it is, so that the same numbers as float32 do not find it: [3, 4] and [3.0, 4.0] have a distance of 14738. "cos" is right.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check usearch==2.26.6 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from usearch.index import Index

index = Index(ndim=2, metric="l2sq", dtype="i8")
for key, vector in enumerate([[3, 4], [0.3, 0.4], [300, 400], [4, 3]]):
    index.add(key, np.array(vector, np.float32))
    print(f"{vector} is stored as {index.get(key).tolist()}")
found = index.search(np.array([3, 4], np.float32), 4, exact=True)
print("distances from [3, 4]:", dict(zip(found.keys.tolist(), found.distances.tolist())))
assert sorted(found.distances.tolist())[:3] == [0, 0, 0] and all(index.get(key).tolist() == [76, 101] for key in range(3))
index = Index(ndim=2, metric="l2sq", dtype="i8")
index.add(0, np.array([3, 4], np.int8))
distances = [index.search(np.array([3, 4], kind), 1, exact=True).distances[0] for kind in (np.int8, np.float32)]
print(f"[3, 4] as int8 is stored as {index.get(0).tolist()}; distance from int8 {distances[0]}, from float32 {distances[1]}")
assert distances == [0, 73**2 + 97**2]

rng = np.random.default_rng(0)
vectors = rng.standard_normal((1000, 64)).astype(np.float32)
vectors *= np.exp(0.7 * rng.standard_normal(1000)).astype(np.float32)[:, None] / np.linalg.norm(vectors, axis=1, keepdims=True)
queries = vectors[:50]
products = queries @ vectors.T
right = {
    "l2sq": np.sum((queries[:, None] - vectors) ** 2, axis=2),
    "ip": -products,
    "cos": -products / np.linalg.norm(vectors, axis=1),
}
for metric, distances in right.items():
    nearest = np.argsort(distances, axis=1)[:, :10].tolist()
    for dtype in ("f32", "e4m3", "i8"):
        index = Index(ndim=64, metric=metric, dtype=dtype)
        index.add(np.arange(1000), vectors)
        found = index.search(queries, 10, exact=True)
        recall = np.mean([len(set(row) & set(ten)) / 10 for row, ten in zip(found.keys.tolist(), nearest)])
        print(f"{metric}, {dtype}: {recall:.0%} of the ten nearest; query 0 and itself: {found.distances[0][0]:g}")
        assert (recall < 0.45) == (dtype == "i8" and metric != "cos") and (recall < 0.45 or recall > 0.9)
        assert (found.distances[0][0] < -10_000) == (dtype == "i8" and metric == "ip")
PYTHON
