#!/usr/bin/env bash
# rouge 1.0.1, Rouge().get_scores, ROUGE-1, ROUGE-2 and ROUGE-L.
#
# Input: answers that repeat themselves, as those of a model in a loop, and a reference without repetition.
# Expected: a precision of 1 / 10 for a word that stands ten times and once in the reference: ROUGE counts a match at most as often as the
# reference has it, and divides by the number of words in the answer. rouge-score 0.1.2 does so.
# Seen: a precision of 1. Each n-gram counts once however often it stands, so that a loop costs nothing: the reference ten times in a row is
# as good as the reference in ROUGE-1 and ROUGE-L, and in ROUGE-2 it loses the pair at the seam alone. What the reference says twice need
# not be repeated either. Rouge(exclusive=False) gives the numbers of rouge-score.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check rouge==1.0.1 rouge-score==0.1.2
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from rouge import Rouge
from rouge_score.rouge_scorer import RougeScorer

NAMES = {"rouge-1": "rouge1", "rouge-2": "rouge2", "rouge-l": "rougeL"}
FOX = "the quick brown fox jumps over a lazy dog"
YES = " ".join(["yes"] * 10)
for answer, reference in ((YES, "yes"), (" ".join([FOX] * 10), FOX), ("to be or not", "to be or not to be")):
    scores = Rouge().get_scores(answer, reference)[0]
    exclusive = Rouge(exclusive=False).get_scores(answer, reference)[0]
    other = RougeScorer(list(NAMES.values())).score(reference, answer)
    for name, other_name in NAMES.items():
        found, counted, expected = scores[name]["p"], exclusive[name]["p"], other[other_name].precision
        print(f"{answer[:12]}... {name}: precision {found:.3f}, not exclusive {counted:.3f}, rouge-score {expected:.3f}")
        assert abs(counted - expected) < 1e-9 and abs(exclusive[name]["r"] - other[other_name].recall) < 1e-9
        assert found > 0.88 or (answer, name) == (YES, "rouge-2")
    assert scores["rouge-1"] == scores["rouge-l"] and scores["rouge-1"]["p"] == scores["rouge-1"]["r"] == 1
PYTHON
