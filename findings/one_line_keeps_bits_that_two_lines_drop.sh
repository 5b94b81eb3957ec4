#!/usr/bin/env bash
# numba 0.68.1, numba.njit on the CPU: expressions of arrays of 8 and 32 bits.
#
# Input: (p << four) >> four with int8 arrays, which extends the sign of the lower of two packed int4; (h * m) >> s of a hash in uint32; and
# (a + b) < a, a test for overflow, in int8. All operands are arrays of one type, with no literal among them.
# Expected: the numbers of NumPy; Numba gives the result NumPy's type. Or, as Numba computes integers in 64 bits, another type.
# Seen: int8 and uint32, but in one line the numbers are wrong: 0x5a becomes 90 instead of -6, and the hash gets bits of its upper half. With
# the inner result in a variable of its own, q = p << four and q >> four, the numbers are NumPy's. A line becomes one loop, whose inner
# results are 64-bit integers; only the last is cut to 8 bits. In int64 a line overflows differently too: (a + b) < a is never true.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check numba==0.68.1 numpy==2.4.6
cat > "$folder/lines.py" <<'PYTHON'
import numpy as np
from numba import njit


def low_nibble(p, four):
    return (p << four) >> four


def low_nibble_in_two(p, four):
    q = p << four
    return q >> four


def hashed(h, m, s):
    return (h * m) >> s


def hashed_in_two(h, m, s):
    product = h * m
    return product >> s


def overflows(a, b):
    return (a + b) < a


def overflows_in_two(a, b):
    total = a + b
    return total < a


packed = np.array([0x5A, 0x2F, -0x6D], np.int8)
word = np.array([2654435769, 5, 77], np.uint32)
for one, two, arguments in (
    (low_nibble, low_nibble_in_two, (packed, np.full(3, 4, np.int8))),
    (hashed, hashed_in_two, (word, word, np.full(3, 16, np.uint32))),
    (overflows, overflows_in_two, (packed, np.full(3, 100, np.int8))),
    (overflows, overflows_in_two, (np.array([2**63 - 1, 1, 7]), np.full(3, 100))),
):
    by_numpy, in_one, in_two = one(*arguments), njit(one)(*arguments), njit(two)(*arguments)
    print(f"{one.__name__} of {arguments[0].dtype}: NumPy {by_numpy}, one line {in_one}, two lines {in_two}, {in_one.dtype}")
    assert in_one.dtype == in_two.dtype == by_numpy.dtype
    assert np.array_equal(in_two, by_numpy) and not np.array_equal(in_one, by_numpy)
assert njit(low_nibble)(packed, np.full(3, 4, np.int8)).tolist() == packed.tolist()
PYTHON
"$folder/venv/bin/python" "$folder/lines.py"
