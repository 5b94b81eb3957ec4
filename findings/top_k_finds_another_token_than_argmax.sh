#!/usr/bin/env bash
# jax 0.10.2 on the CPU, jax.lax.top_k beside argmax, argsort and max.
#
# Input: logits that are all 0, of which some are -0, as a scale or a mask of 0 makes them of negative numbers; and a row with a NaN whose
# sign bit is set, -jnp.nan, beside one with jnp.nan.
# Expected: -0 equals 0, so that of equal logits the first token is taken, as argmax takes it; NaN comes first in each case, or never.
# Seen: of [-1, -2, 1, 2] * 0 argmax is 0, and top_k takes token 2: it orders 0 before -0, so that greedy decoding by argmax and by top_k
# with k = 1 write different tokens. argsort and sort take both zeros for equal. top_k of [1, nan, 3] begins with NaN, and of [1, -nan, 3]
# with 3, where max and argmax find the NaN in both: whether top_k hides it depends on a bit that printing does not show. Under jit it is
# the same.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 ml_dtypes==0.6.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp

zeros = jnp.array([-1.0, -2.0, 1.0, 2.0]) * 0
for name, top_k in (("top_k", jax.lax.top_k), ("top_k under jit", jax.jit(jax.lax.top_k, static_argnums=1))):
    for k, tokens in ((1, [2]), (4, [2, 3, 0, 1])):
        found = top_k(zeros, k)[1].tolist()
        print(f"{name} of {zeros}: tokens {found}")
        assert found == tokens
    for nan, tokens in ((jnp.nan, [1, 2]), (-jnp.nan, [2, 0])):
        row = jnp.array([1.0, nan, 3.0])
        found = top_k(row, 2)[1].tolist()
        print(f"{name} of {row}, sign bit {jnp.signbit(row[1])}: tokens {found}; argmax {jnp.argmax(row)}, max {row.max()}")
        assert found == tokens and jnp.argmax(row) == 1 and jnp.isnan(row.max())
print(f"argmax {jnp.argmax(zeros)}, argsort {jnp.argsort(zeros, descending=True)}")
assert jnp.argmax(zeros) == 0 and jnp.argsort(zeros, descending=True).tolist() == [0, 1, 2, 3]
assert (zeros == 0).all()
PYTHON
