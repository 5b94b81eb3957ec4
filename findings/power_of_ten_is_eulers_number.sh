#!/usr/bin/env bash
# math-verify 0.9.0 with latex2sympy2_extended 1.11.0, parse and verify, which score answers in benchmarks and in reinforcement learning.
#
# Input: answers as models and Python write them, in a text and in LaTeX: 1e5, 3e8 m/s, \boxed{3e8}, 1\,000 with a thin space.
# Expected: 100,000 and 3 * 10**8, as for 3 \times 10^8; or no number at all, as for an answer that cannot be read.
# Seen: in a text 1e5 and 1e-5 are 1, so that "1e5" equals the reference 1, and not 100,000. In LaTeX e is Euler's number: \boxed{3e8} is
# 3 * e * 8, which is 65, and $1.5e-3$ is 1.5 * e - 3; a capital E is a power of ten there. $1\,000$ is the product of 1 and 000, so 0;
# with a comma it is 1,000. And the sine of $30^\circ$ is that of 30 radians.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check math-verify==0.9.0 latex2sympy2-extended==1.11.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from math_verify import parse, verify

for answer, right, wrong in (
    ("1e5", "100000", "1"),
    ("The answer is 1e-5.", "$10^{-5}$", "1"),
    ("3e8 m/s", r"$3 \times 10^8$", "3"),
    (r"\boxed{3e8}", r"\boxed{3 \times 10^8}", "$24e$"),
    ("$1.5e-3$", "0.0015", "$1.5e - 3$"),
    (r"\boxed{1\,000}", "1000", "0"),
    (r"$\sin 30^\circ$", "0.5", r"$\sin(30)$"),
):
    found = parse(answer)
    print(f"{answer} is {found[0]}, {float(found[0]):.5g}; equals {wrong}, and not {right}")
    assert verify(parse(wrong), found) and not verify(parse(right), found)
assert verify(parse("100000"), parse("$1E5$")) and verify(parse("100000"), parse("$10^5$")) and verify(parse("1000"), parse("1,000"))
PYTHON
