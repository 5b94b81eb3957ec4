#!/usr/bin/env bash
# mlx 0.32.4 on the CPU of Linux, mx.mean, mx.var and mx.linalg.norm.
#
# Input: 8,192 numbers of 4 in float16, a vector of hidden states; its mean of squares is 16, its norm 362. And three int32 of 2**30.
# Expected: 16, as NumPy and torch give for float16, because they add in float32; 2**30.
# Seen: mean(x * x) is infinity: mean divides a sum that is a float16, and this sum is beyond 65504. The norm is infinity as well, and so
# is var of 8,192 normal numbers times 10. An RMSNorm that is written with mean divides by infinity and returns zeros; mx.fast.rms_norm returns 1. The
# mean of the integers is -357913941: their sum is an int32. In bfloat16 the mean is 16.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "mlx[cpu]==0.32.4" numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)
hidden = mx.full((8192,), 4.0, dtype=mx.float16)
mean, norm = mx.mean(hidden * hidden), mx.linalg.norm(hidden)
variance = mx.var(10 * mx.random.normal((8192,), key=mx.random.key(0)).astype(mx.float16))
written, built_in = hidden * mx.rsqrt(mean), mx.fast.rms_norm(hidden, None, 1e-6)
integers = mx.mean(mx.full((3,), 2**30, dtype=mx.int32))
brain = mx.mean(mx.full((8192,), 16.0, dtype=mx.bfloat16))
expected = np.full(8192, 16, np.float16).mean()
print("float16: mean of squares", mean.item(), "norm", norm.item(), "var", variance.item(), "NumPy's mean", expected)
print("RMSNorm by mean:", written[0].item(), "rms_norm:", built_in[0].item(), "mean of int32:", integers.item(), "bfloat16:", brain.item())
assert mean.item() == norm.item() == variance.item() == float("inf") and expected == 16
assert written[0].item() == 0 and built_in[0].item() == 1 and brain.item() == 16
assert round(integers.item()) < -357_000_000
PYTHON
