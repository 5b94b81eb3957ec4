#!/usr/bin/env bash
# jax 0.10.2 on the CPU, jax.random.categorical with logits of bfloat16 and float16, the dtype in which a model returns them.
#
# Input: 1,000 equal logits, of which a sampler should pick the first half in 50% of the draws; and one logit of 0 beside ten of -6, which
# should be picked in 2.4% of the draws. bfloat16 holds these logits exactly. The documentation names one limit, a bias of float32 for
# probabilities below 1e-7.
# Expected: these shares, as float32 gives.
# Seen: in bfloat16 98% of the draws are in the first half, and none of 20,000 is among the last ten tokens. The ten of -6 get 1.0%. In
# float16 it is 62% and 1.8%. The Gumbel noise has the dtype of the logits: in bfloat16 its largest value comes up in several tokens at
# once, and of equal sums argmax takes the first. mode="high" gives 51% and 2.4%; logits.astype(float32) gives the right shares.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy as np


def draw(logits, mode=None):
    return np.asarray(jax.random.categorical(jax.random.key(0), logits, shape=(20_000,), mode=mode))


def shares(dtype, mode=None):
    """Percent of draws in the first half of 1,000 equal logits, in its last ten, and beside the largest of eleven logits."""
    equal, unequal = draw(jnp.zeros(1000, dtype), mode), draw(jnp.array([0] + [-6] * 10, dtype), mode)
    found = [100 * float(drawn.mean()) for drawn in (equal < 500, equal >= 990, unequal > 0)]
    name = f"{jnp.dtype(dtype).name}, mode {mode}"
    print(f"{name:20} first half {found[0]:5.1f}%  last ten {found[1]:.2f}%  the ten of -6 {found[2]:.2f}%")
    return found


print("expected:            first half  50.0%  last ten 1.00%  the ten of -6 2.42%")
half, last, rare = shares(jnp.float32)
assert 49 < half < 51 and 0.8 < last < 1.2 and 2.2 < rare < 2.7
half, last, rare = shares(jnp.bfloat16)
assert half > 97 and last == 0 and rare < 1.2
half, last, rare = shares(jnp.float16)
assert 60 < half < 64 and last < 0.8 and rare < 2.2
half, last, rare = shares(jnp.bfloat16, "high")
assert 50 < half < 53 and 2 < rare < 2.6
PYTHON
