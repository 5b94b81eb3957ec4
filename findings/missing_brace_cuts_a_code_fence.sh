#!/usr/bin/env bash
# json_repair 0.64.6, loads of a JSON text whose last brace is missing, or that has a comma before it.
#
# Input: {"answer": TEXT, "n": 1} by json.dumps, whole, without its last brace, and with a comma before the brace; the text is a Markdown block
# of JSON, one of Python, a line of code, a sentence with U+1D465 (the x of formulas), a form feed, and a backslash before a quotation mark.
# Expected: the brace is added or the comma dropped, and the strings, which are whole, stay as they are.
# Seen: of the block of JSON the beginning is lost: "n{}..." is left, with the n of the escape of its line break. A line break at the end is
# lost. The x of formulas becomes the two halves of a surrogate pair, so that the text cannot be written as UTF-8. The form feed becomes a
# backslash and an f, and the backslash before the quotation mark is lost. The block of Python is right, and so is all in the whole JSON.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check json_repair==0.64.6
"$folder/venv/bin/python" - <<'PYTHON'
import json

import json_repair

CHANGED = {
    "```json\n{}\n```": "n{}\n```",
    '```json\n{"x": 1}\n```': 'n{"x": 1}\n```',
    "x = 1\n": "x = 1",
    "let \U0001d465 be": "let \ud835\udc65 be",
    "a\fb": "a\\fb",
    'say \\"': 'say "',
}
SAME = ("```python\nprint(1)\n```", "two\nlines", 'say "hi", please', "C:\\new")
for text in [*CHANGED, *SAME]:
    whole = json.dumps({"answer": text, "n": 1})
    assert json_repair.loads(whole) == json.loads(whole)
    for broken in (whole[:-1], whole[:-1] + ",}"):
        found = json_repair.loads(broken)
        print(f"{broken} -> {found}".encode("utf-8", "backslashreplace").decode())
        assert found == {"answer": CHANGED.get(text, text), "n": 1}
try:
    json_repair.loads(json.dumps({"answer": "\U0001d465"})[:-1])["answer"].encode()
except UnicodeEncodeError as error:
    print(f"U+1D465 as UTF-8: {error}")
else:
    raise SystemExit("U+1D465 is one character now")
PYTHON
