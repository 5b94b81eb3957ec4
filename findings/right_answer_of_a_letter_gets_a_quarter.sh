#!/usr/bin/env bash
# torchmetrics 1.9.0, CHRFScore and chrf_score, beside chrF and chrF++ of sacrebleu 2.6.0.
#
# Input: answers that equal their reference: "A", "yes", "Paris", "in Paris" and a sentence.
# Expected: the best score, 1, as sacrebleu gives 100 for each.
# Seen: "A" gets 0.25, "yes" 0.5 and "Paris" 0.75; only "in Paris" and longer ones get 1. An n-gram length that neither text has counts as 0, and the
# sum is divided by all six lengths of characters and both of words; sacrebleu leaves such a length out. So short answers that are right score
# no higher than long ones that are half right.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check torchmetrics==1.9.0 torch==2.13.0 sacrebleu==2.6.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from sacrebleu.metrics import CHRF
from torchmetrics.functional.text import chrf_score

EXPECTED = {"A": 0.25, "yes": 0.5, "Paris": 0.75, "in Paris": 1.0, "It lies in Paris.": 1.0}
for answer, expected in EXPECTED.items():
    plus = chrf_score([answer], [[answer]]).item()
    plain = chrf_score([answer], [[answer]], n_word_order=0).item()
    right = [CHRF(word_order=order).sentence_score(answer, [answer]).score for order in (2, 0)]
    print(f"{answer!r}: chrF++ {plus:.2f}, chrF {plain:.2f}; of sacrebleu {right[0]:.0f} and {right[1]:.0f}")
    assert abs(plus - expected) < 1e-6 and [round(score, 6) for score in right] == [100, 100]
PYTHON
