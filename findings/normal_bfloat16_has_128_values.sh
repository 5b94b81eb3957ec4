#!/usr/bin/env bash
# jax 0.10.2 on the CPU, jax.random in bfloat16 and float16.
#
# Input: a million draws of normal, truncated_normal, uniform and exponential in bfloat16, as weights or noise are drawn in a model's type.
# Expected: the float32 draws, rounded: thousands of different values, and a largest one between 4 and 5.5 for the normal distribution.
# Seen: normal yields 128 different values, the largest 2.515625 and the smallest -2.890625: the draws are not symmetric, 0 is none of them,
# and beyond 2.9 there is nothing, where 3,700 of a million belong. uniform has the same 128, and exponential ends at 4.84375, of which
# 7,900 of a million should be beyond. float16 has 1,024 values, up to 3.18 and down to -3.49. Numbers are drawn with as many random bits
# as the type has bits in its mantissa, and then transformed. normal(key, shape, float32).astype(bfloat16) has 2,000 values and more.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 ml_dtypes==0.6.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import jax
import numpy as np


def draw(distribution, kind, *limits):
    """The different values of a million draws."""
    return np.unique(np.asarray(distribution(jax.random.key(0), *limits, shape=(1_000_000,), dtype=kind)).astype(np.float64))


random = jax.random
for name, values, count, smallest, largest in (
    ("normal, bfloat16", draw(random.normal, "bfloat16"), 128, -2.890625, 2.515625),
    ("normal, float16", draw(random.normal, "float16"), 1024, -3.486328125, 3.181640625),
    ("truncated to 3, bfloat16", draw(random.truncated_normal, "bfloat16", -3, 3), 128, -2.890625, 2.328125),
    ("uniform, bfloat16", draw(random.uniform, "bfloat16"), 128, 0, 127 / 128),
    ("exponential, bfloat16", draw(random.exponential, "bfloat16"), 128, 0, 4.84375),
):
    print(f"{name}: {len(values)} values from {values[0]} to {values[-1]}")
    assert len(values) == count and np.abs(values[[0, -1]] - [smallest, largest]).max() < 0.02
assert 0 not in draw(random.normal, "bfloat16")

rounded = np.asarray(random.normal(random.key(0), (1_000_000,)).astype("bfloat16")).astype(np.float64)
beyond = (np.abs(rounded) > 2.9).sum()
print(f"normal, float32, then rounded: {len(np.unique(rounded))} values up to {rounded.max()}, {beyond} beyond 2.9")
assert len(np.unique(rounded)) > 2000 and rounded.max() > 4 and 3000 < beyond < 4500
PYTHON
