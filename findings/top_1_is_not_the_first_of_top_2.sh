#!/usr/bin/env bash
# faiss-cpu 1.15.1, flat indices: the order of vectors that are equally near.
#
# Input: six documents of which the first, the third and the fifth are the same, as copies of a passage are, and a query that equals them.
# Expected: a stable order: the nearest for k = 1 is the first of the two for k = 2, and of copies the one that was added first comes first.
# Seen: by inner product k = 1 gives document 0, k = 2 gives 2, 0, and k = 3 gives 4, 2, 0: with each k another document is first, and the
# last copies come first. Of ten copies k = 2 gives the numbers 1 and 0: the first k are chosen, and turned round. By L2 distance the
# order is 0, 2, 4 for every k, so that two indices of the same normalised vectors, which rank alike, begin with different documents.
# Documents whose score is 0 are turned round as well. A program that asks for more results, to filter them or to show a page of them, gets
# another best one.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check faiss-cpu==1.15.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import faiss
import numpy as np

documents = np.eye(4, dtype=np.float32)[[0, 1, 0, 2, 0, 3]]
product, distance = faiss.IndexFlatIP(4), faiss.IndexFlatL2(4)
product.add(documents)
distance.add(documents)
for k, by_product, by_distance in (
    (1, [0], [0]),
    (2, [2, 0], [0, 2]),
    (3, [4, 2, 0], [0, 2, 4]),
    (6, [4, 2, 0, 5, 3, 1], [0, 2, 4, 1, 3, 5]),
):
    found = [index.search(documents[:1], k)[1][0].tolist() for index in (product, distance)]
    print(f"k = {k}: by inner product {found[0]}, by distance {found[1]}")
    assert found == [by_product, by_distance]

copies = faiss.IndexFlatIP(4)
copies.add(np.repeat(documents[:1], 10, axis=0))
for k in (1, 2, 3, 5, 10):
    for queries in (1, 50):
        found = copies.search(np.repeat(documents[:1], queries, axis=0), k)[1]
        assert (found == np.arange(k)[::-1]).all()
    print(f"ten copies, k = {k}: {found[0].tolist()}")
PYTHON
