#!/usr/bin/env bash
# triton 3.9.0 with TRITON_INTERPRET=1, its interpreter for the CPU: arithmetic of bfloat16 and float8.
#
# Input: a kernel that loads 1, -2, 0.5 and 3 as bfloat16 and as float8_e4m3fn, and stores x + x, x * x, -x, maximum(x, 0), sort(x), x /
# 3, sum(x), argmax(x) and dot of two matrices. The documentation says that the interpreter does not support operations on bfloat16.
# Expected: an error for what is not supported, as exp(x) raises one; otherwise these numbers in the type's precision.
# Seen: 1 + 1 is 1.7e38, 3 + 3 is -1.2e-38, 1 * 1 is 2, -1 is -4. maximum(-2, 0) is -2, -2 is the last of the sorted numbers, and argmax
# finds it. The dot product of two diagonals of 2 has 268435456 in place of 4. No message comes: the numbers are kept as integers of their
# bits, and NumPy computes with those. x / 3 is right, and so are max(x), min(x) and all that was cast to float32 before. The same kernel
# with float16 is right. float8, which the documentation does not mention, fares the same: 1 + 1 is 128.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check triton==3.9.0 torch==2.13.0 numpy==2.4.6
cat >"$folder/kernels.py" <<'PYTHON'
import torch
import triton
import triton.language as tl


@triton.jit
def elementwise(x, sums, products, negated, positive, ordered, thirds, n: tl.constexpr):
    at = tl.arange(0, n)
    a = tl.load(x + at)
    tl.store(sums + at, a + a)
    tl.store(products + at, a * a)
    tl.store(negated + at, -a)
    tl.store(positive + at, tl.maximum(a, 0.0))
    tl.store(ordered + at, tl.sort(a))
    tl.store(thirds + at, a / 3.0)


@triton.jit
def reductions(x, sums, largest, where, cast, n: tl.constexpr):
    a = tl.load(x + tl.arange(0, n))
    tl.store(sums, tl.sum(a))
    tl.store(largest, tl.max(a))
    tl.store(where, tl.argmax(a, 0))
    tl.store(cast, tl.sum(a.to(tl.float32)))


@triton.jit
def product(x, y, n: tl.constexpr):
    at = tl.arange(0, n)[:, None] * n + tl.arange(0, n)[None, :]
    tl.store(y + at, tl.dot(tl.load(x + at), tl.load(x + at)))


def computed(dtype):
    numbers = torch.tensor([1.0, -2.0, 0.5, 3.0]).to(dtype)
    out = [torch.zeros(4) for _ in range(6)]
    elementwise[(1,)](numbers, *out, 4)
    single = [torch.zeros(1) for _ in range(4)]
    reductions[(1,)](numbers, *single, 4)
    names = ["x + x", "x * x", "-x", "maximum(x, 0)", "sort(x)", "x / 3", "sum(x)", "max(x)", "argmax(x)", "sum of float32"]
    found = dict(zip(names, [value.tolist() for value in out] + [value.item() for value in single]))
    if dtype != torch.float8_e4m3fn:
        matrix = torch.zeros(16, 16)
        product[(1,)]((torch.eye(16) * 2).to(dtype), matrix, 16)
        found["dot"] = matrix[0, 0].item()
    print(dtype, found)
    return found


half, brain, eight = (computed(dtype) for dtype in (torch.float16, torch.bfloat16, torch.float8_e4m3fn))
assert half["x + x"] == [2, -4, 1, 6] and half["argmax(x)"] == 3 and half["dot"] == 4
assert brain["x + x"][0] > 1e38 and -1e-37 < brain["x + x"][3] < 0 and brain["x * x"][0] == 2 and brain["-x"][0] == -4
assert brain["maximum(x, 0)"][1] == -2 and brain["sort(x)"] == [0.5, 1, 3, -2] and brain["argmax(x)"] == 1 and brain["dot"] == 2.0**28
assert abs(brain["x / 3"][3] - 1) < 1e-6 and brain["max(x)"] == 3 and brain["sum of float32"] == 2.5 and brain["sum(x)"] > 1e38
assert eight["x + x"][0] == 128 and eight["argmax(x)"] == 1 and eight["sum of float32"] == 2.5
PYTHON
TRITON_INTERPRET=1 "$folder/venv/bin/python" "$folder/kernels.py"
