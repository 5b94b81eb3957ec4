#!/usr/bin/env bash
# numba 0.68.1, sum and mean of float32 arrays in numba.njit.
#
# Input: 2**25 numbers that are 1 or 0, three of four 1, as counts of hits are; and as many losses between 1 and 3.
# Expected: what NumPy gives for the same calls: 25165824, and a mean of 0.75. NumPy adds in blocks and pairs, which keeps float32 exact
# enough.
# Seen: the sum is 16777216, where adding 1 to a float32 changes nothing, and the mean is 0.5, without a message. The mean of the losses is
# 2, as its many errors go both ways: a test with random numbers shows nothing. A loop with `total = 0.0` is right, as its variable is a
# float64; it is the built-in sum that adds in the type of the array, one number after the other.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check numba==0.68.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from numba import njit


@njit
def compiled(x):
    total = 0.0
    for number in x:
        total += number
    return x.sum(), np.mean(x), total / len(x)


hits = (np.arange(2**25) % 4 > 0).astype(np.float32)
losses = np.random.default_rng(0).uniform(1, 3, 2**25).astype(np.float32)
for name, x in (("hits", hits), ("losses", losses)):
    print(name, "numba: sum, mean, mean by a loop:", *compiled(x), " NumPy:", x.sum(), x.mean())
assert compiled(hits) == (2**24, 0.5, 0.75) and hits.sum() == 3 * 2**23 and hits.mean() == 0.75
assert all(abs(mean - 2) < 0.001 for mean in (*compiled(losses)[1:], losses.mean()))
PYTHON
