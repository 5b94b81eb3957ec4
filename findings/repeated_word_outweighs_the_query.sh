#!/usr/bin/env bash
# rank-bm25 0.2.2, BM25L, beside BM25Okapi and the BM25L of bm25s 0.3.16.
#
# Input: documents of 60 words with "gpu" 0, 1, 2, 5, 20 and 60 times; and the query "cuda kernel gpu" for one document with all three words and
# one that says "gpu" five times.
# Expected: a score that levels off with the repetitions, as it is the point of BM25: the fiftieth "gpu" adds nearly nothing. For the query, the
# document with all three words is the first.
# Seen: 60 times "gpu" has 117 times the score of one. BM25Okapi and the BM25L of bm25s give 2.4 and 2.0 times. BM25L multiplies the part
# that levels off by the number of occurrences once more. For the query, the document of five times "gpu" has twice the score of the one with
# all words, and a text that repeats itself, such as a table or a log, comes first.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check rank-bm25==0.2.2 bm25s==0.3.16 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import bm25s
from rank_bm25 import BM25L, BM25Okapi

TIMES = (0, 1, 2, 5, 20, 60)


def of_bm25s(documents):
    index = bm25s.BM25(method="bm25l")
    index.index(documents, show_progress=False)
    return index


repeated = [["gpu"] * times + ["word"] * (60 - times) for times in TIMES] + [["word"] * 60] * 6
ratios = {}
for name, build in (("BM25L", BM25L), ("BM25Okapi", BM25Okapi), ("BM25L of bm25s", of_bm25s)):
    scores = build(repeated).get_scores(["gpu"])[: len(TIMES)]
    ratios[name] = scores[5] / scores[1]
    print(f"{name}: 'gpu' {TIMES} times: {[round(float(score), 2) for score in scores]}, the last {ratios[name]:.1f} times the second")
assert ratios["BM25L"] > 100 and ratios["BM25Okapi"] < 3 and ratios["BM25L of bm25s"] < 3

texts = ["cuda kernel on gpu", "gpu gpu gpu gpu gpu", "cake with apples", "cuda", "bread and butter"]
documents = [text.split() for text in texts]
firsts = {}
for name, build in (("BM25L", BM25L), ("BM25Okapi", BM25Okapi), ("BM25L of bm25s", of_bm25s)):
    scores = build(documents).get_scores(["cuda", "kernel", "gpu"])
    firsts[name] = texts[scores.argmax()]
    print(f"{name}: {[round(float(score), 2) for score in scores]}, first: {firsts[name]}")
assert firsts == {"BM25L": texts[1], "BM25Okapi": texts[0], "BM25L of bm25s": texts[0]}
PYTHON
