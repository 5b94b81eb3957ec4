#!/usr/bin/env bash
# triton 3.9.0 with TRITON_INTERPRET=1, its interpreter for the CPU: conversions of float32.
#
# Input: a kernel that loads float32 numbers and stores them as bfloat16, float16, float8_e4m3fn and float8_e5m2: x.to(type).
# Expected: rounding to the nearest, which Triton's documentation names as the default ("rtne") and a GPU does, as for float16; NaN stays NaN.
# Seen: bfloat16 is the upper half of the bits: 1.999 becomes 1.9921875 instead of 2, an error that is twice as large and always towards
# zero; a subnormal 1e-40 becomes 1e-39. In float8_e4m3fn 1.999 becomes 1, an error of half; NaN becomes 384, and 500 becomes 256, as does
# infinity; in float8_e5m2 500 becomes 256 as well. A kernel that is right on a GPU fails its test here, and a tolerance that is wide
# enough for this interpreter also passes kernels that do not round.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check triton==3.9.0 torch==2.13.0 numpy==2.4.6
cat > "$folder/convert.py" <<'PYTHON'
import torch
import triton
import triton.language as tl


@triton.jit
def convert(source, target):
    places = tl.arange(0, 8)
    tl.store(target + places, tl.load(source + places).to(target.dtype.element_ty))


numbers = torch.tensor([1.999, -1.999, 0.3, 1e-40, 448, 500, torch.inf, torch.nan])
found = {}
for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2):
    target = torch.empty(8, dtype=dtype)
    convert[(1,)](numbers, target)
    found[dtype] = target.float().tolist()
    print(dtype, found[dtype], "rounded:", numbers.to(dtype).float().tolist())
assert found[torch.bfloat16][:3] == [1.9921875, -1.9921875, 0.298828125] and found[torch.bfloat16][3] > 1e-39
assert found[torch.float16][:7] == numbers.half().float().tolist()[:7]
assert found[torch.float8_e4m3fn][:2] == [1, -1] and found[torch.float8_e4m3fn][4:] == [448, 256, 256, 384]
assert found[torch.float8_e5m2][:2] == [1, -1] and found[torch.float8_e5m2][5] == 256
PYTHON
TRITON_INTERPRET=1 "$folder/venv/bin/python" "$folder/convert.py"
