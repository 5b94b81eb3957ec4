#!/usr/bin/env bash
# jax 0.10.2 on the CPU, jax.nn.standardize: "Standardizes input to zero mean and unit variance".
#
# Input: four numbers in a row from 1,000, 3,000, 10,000 and 1,000,000 on, in float32; float16 numbers of 255 and of 256.
# Expected: -1.34, -0.45, 0.45, 1.34 in each case, as (x - mean) / std gives with jax.numpy in float32.
# Seen: from 3,000 on the variance is 1 in place of 1.25, and from 10,000 on it is 0: the results are -474 to 474, the differences divided
# by the root of epsilon. In float16 numbers from 256 on are standardised to 0, as their square is infinity, and those of 255 are right;
# bfloat16, whose range is that of float32, is right for both. The variance is computed as mean(x**2) - mean(x)**2 in the type of x.
# jax.numpy's var subtracts the mean first.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 ml_dtypes==0.6.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy as np

expected = [-1.3416, -0.4472, 0.4472, 1.3416]
for first, is_right in ((0, True), (1000, True), (3000, False), (10_000, False), (1_000_000, False)):
    x = jnp.arange(4, dtype=jnp.float32) + first
    standardized, by_definition = jax.nn.standardize(x), (x - x.mean()) / x.std()
    print(f"{x}: {standardized}, by definition {by_definition}")
    np.testing.assert_allclose(by_definition, expected, atol=1e-3)
    assert (np.abs(np.asarray(standardized) - expected).max() < 1e-3) == is_right

for size, kind, is_zero in ((255, "float16", False), (256, "float16", True), (256, "bfloat16", False)):
    x = jnp.array([size, -size, size / 2, 0], kind)
    standardized = np.asarray(jax.nn.standardize(x)).astype(np.float32)
    print(f"{x} in {kind}: {standardized}")
    assert (standardized == 0).all() == is_zero
PYTHON
