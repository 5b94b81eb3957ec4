#!/usr/bin/env bash
# numba 0.68.1, numba.njit on the CPU: uint64 with a literal.
#
# Input: h = np.uint64(2**63 + 5), a hash for example, and n % 10, n // 2, n + 1.
# Expected: uint64, as of NumPy 2 (3 is the last digit); or float64, as of NumPy's arrays of uint64 and int64.
# Seen: (uint64, int64) -> int64, without a warning: h % 10 is 7, h // 2 and h + 1 are negative. h >> 1 stays a uint64, and h > -1 is right.
# A variable that holds both types is float64 all the same: total = np.uint64(0), then total += x of an int32 array, ends as 3.0, and loses
# the last bits beyond 2**53. np.uint64(10) instead of 10 gives 3.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check numba==0.68.1 numpy==2.4.6
cat > "$folder/unsigned.py" <<'PYTHON'
import numpy as np
from numba import njit


@njit
def with_literals(h):
    return h % 10, h // 2, h + 1, h >> 1, h > -1, h % np.uint64(10)


@njit
def total_of(numbers):
    total = np.uint64(0)
    for number in numbers:
        total += number
    return total


h = np.uint64(2**63 + 5)
found = with_literals(h)
print("%% 10: %d, // 2: %d, + 1: %d, >> 1: %d, > -1: %s, %% np.uint64(10): %d" % found)
assert (int(h % 10), found[0], found[5]) == (3, 7, 3)
assert found[1] < 0 and found[2] == 6 - 2**63 and found[3] == int(h) // 2 and found[4]
total = total_of(np.ones(3, np.int32))
print("total:", total, total_of.nopython_signatures)
assert isinstance(total, float)
PYTHON
"$folder/venv/bin/python" "$folder/unsigned.py"
