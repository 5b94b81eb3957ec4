#!/usr/bin/env bash
# numba-cuda 0.30.4 with NUMBA_ENABLE_CUDASIM=1 (its own simulator): three programs that run without a message and give other numbers.
#
# Input: (1) out[0] = libdevice.sqrtf(x[0]) with x[0] = 4; (2) a cooperative grid of two blocks, in which every thread writes 1, waits at
# cg.this_grid().sync(), and adds what a thread of the other block wrote; (3) a kernel with the eager signature void(float32[:], int32),
# called with 7.9.
# Expected: 2, 2 everywhere, and 7 (the compiler converts the argument), or an error that says what the simulator lacks.
# Seen: (1) NaN: the functions of libdevice are stubs, which return None; (2) the first block reads 0 from the second, which has not started:
# the grid's barrier is a barrier of the block; (3) 7.9, since signatures are ignored.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check numba-cuda==0.30.4 numba==0.68.1 "numpy<2.5"
NUMBA_ENABLE_CUDASIM=1 "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import numpy as np
from numba import cuda
from numba.cuda import libdevice


@cuda.jit
def root(x, out):
    out[0] = libdevice.sqrtf(x[0])


@cuda.jit
def exchange(x):
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    x[i] = 1
    grid.sync()
    other = x[(i + 4) % 8]
    grid.sync()
    x[i] += other


@cuda.jit("void(float32[:], int32)")
def store(x, number):
    x[0] = number


out, both, stored = np.zeros(1, np.float32), np.zeros(8), np.zeros(1, np.float32)
root[1, 1](np.full(1, 4, np.float32), out)
exchange[2, 4](both)
store[1, 1](stored, 7.9)
print("sqrtf(4):", out[0], " after the grid's barrier:", both, " 7.9 for an int32:", stored[0])
assert np.isnan(out[0]) and both.tolist() == [1] * 4 + [2] * 4 and 7.8 < stored[0] < 8
PYTHON
