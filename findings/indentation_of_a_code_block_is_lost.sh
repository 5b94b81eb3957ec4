#!/usr/bin/env bash
# langchain-text-splitters 1.1.3, MarkdownHeaderTextSplitter.
#
# Input: a page with a heading, a sentence with a no-break space, a tab and an ideographic space, a nested list, and a block of Python in
# a fence, as documents for retrieval are.
# Expected: the text under the heading, as it stands: only headings are looked for, and headings in a fence are left alone.
# Seen: every line is stripped and loses all characters that are not printable for Python, in the fence, too. The Python code has no
# indentation and is no Python any more, the list has one level, and words that a tab, a no-break space or an ideographic space separates
# are one word: "10 km" is "10km". There is no message, and no option keeps them. ExperimentalMarkdownSyntaxTextSplitter of the same
# package keeps all of it.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check langchain-text-splitters==1.1.3
"$folder/venv/bin/python" - <<'PYTHON'
import ast

from langchain_text_splitters import ExperimentalMarkdownSyntaxTextSplitter, MarkdownHeaderTextSplitter

CODE = "def sign(x):\n    if x < 0:\n        return -1\n    return 1\n"
PAGE = f"# Speed\n\nAt most 10\u00a0km,\tin words \u5341\u3000\u516c\u91cc.\n\n- one\n  - two\n\n```python\n{CODE}```\n"


def is_python(text):
    try:
        ast.parse(text.split("```python\n")[1].split("```")[0])
    except SyntaxError:
        return False
    return True


assert is_python(PAGE)
for options in ({}, {"strip_headers": False}):
    text = "".join(document.page_content for document in MarkdownHeaderTextSplitter([("#", "title")], **options).split_text(PAGE))
    print(f"MarkdownHeaderTextSplitter, {options}: {text!r}")
    assert "10km,in words \u5341\u516c\u91cc." in text and "- one\n- two" in text and not is_python(text)
text = "".join(document.page_content for document in ExperimentalMarkdownSyntaxTextSplitter([("#", "title")]).split_text(PAGE))
print(f"ExperimentalMarkdownSyntaxTextSplitter: {text!r}")
assert text == PAGE.removeprefix("# Speed\n") and is_python(text)
PYTHON
