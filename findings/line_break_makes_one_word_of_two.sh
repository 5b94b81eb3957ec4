#!/usr/bin/env bash
# jiwer 4.0.0, wer and process_words with their default transformation.
#
# Input: a reference whose words stand on two lines, "the cat sat\non the mat", and the same words on one line; tabs and no-break spaces.
# Expected: 0, since all words are the same: words are separated by white space.
# Seen: 0.4. A single line break, tab or no-break space separates no words: "sat\non" is one word, and the reference has five. Two of
# them in a row do, as RemoveMultipleSpaces replaces two or more characters of white space by a space, and so does "\r\n": a file with the
# line ends of Windows scores 0, and the same file with those of Unix does not. The more lines, the worse: of a list with one word per line
# the rate is 6.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jiwer==4.0.0
"$folder/venv/bin/python" - <<'PYTHON'
import jiwer

words = "the cat sat on the mat"
for reference, rate in (
    ("the cat sat\non the mat", 0.4),
    ("the cat sat\r\non the mat", 0),
    ("the cat sat\n\non the mat", 0),
    ("the cat sat\ton the mat", 0.4),
    ("the cat sat\u00a0on the mat", 0.4),
    ("the cat sat  on the mat", 0),
    ("the cat sat on the mat\n", 0),
    ("the\ncat\nsat\non\nthe\nmat", 6),
):
    output = jiwer.process_words(reference, words)
    print(f"{reference!r}: {len(output.references[0])} words, rate {output.wer}")
    assert output.wer == jiwer.wer(reference, words) == rate
    assert reference.split() == words.split()
PYTHON
