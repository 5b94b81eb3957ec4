#!/usr/bin/env bash
# numba-cuda 0.30.4 with numba 0.68.1 on Python 3.11: the square of an int64 in a kernel is rounded to float64.
#
# Input: out[0] = x[0] ** 2, with x and out arrays of int64. Numba's typing says (int64, int64) -> int64, and its compiler for the CPU gives
# 9007199515875289 for 94906267 ** 2.
# Expected: one 64-bit multiplication on a GPU too.
# Seen in the PTX: the exact product (mul.lo.s64) is converted to float64 and back (cvt.rn.f64.s64, cvt.rzi.s64.f64), so numbers beyond 2**53
# lose their last bits. x[0] * x[0] stays exact. Nothing runs on a GPU here: the kernels are compiled to PTX.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "numba-cuda[cu13]==0.30.4" "numba==0.68.1" "numpy==2.4.6"
cat > "$folder/power.py" <<'PYTHON'
from numba import types
from numba.cuda import compile_ptx


def square(x, out):
    out[0] = x[0] ** 2


def product(x, out):
    out[0] = x[0] * x[0]


def conversions(kernel):
    ptx, _ = compile_ptx(kernel, (types.int64[::1], types.int64[::1]), cc=(9, 0))
    return [line.split()[0] for line in ptx.splitlines() if line.strip().startswith(("cvt.", "mul."))]


print("x ** 2:", conversions(square))
print("x * x: ", conversions(product))
assert "cvt.rn.f64.s64" in conversions(square) and "cvt.rzi.s64.f64" in conversions(square)
assert not any("f64" in one for one in conversions(product))
PYTHON
"$folder/venv/bin/python" "$folder/power.py"
