#!/usr/bin/env bash
# safetensors 0.8.0, safetensors.numpy.save and save_file of a transposed array.
#
# Input: weight.T, whose memory is contiguous and dense, in Fortran's order. (A convertor transposes GPT-2's or JAX's kernels so.)
# Expected: the array comes back, as with 0.7.0 and before; or an error, as safetensors.torch raises for a tensor that is not contiguous.
# Seen: the shape of weight.T with the numbers in the order of weight's memory, without a warning: [[0, 3], [1, 4], [2, 5]] is loaded as
# [[0, 1], [2, 3], [4, 5]]. 0.8.0 hands the array's pointer on, where 0.7.0 called tobytes(), which follows the strides. The docstring asks
# for "contiguous and dense" tensors in both. np.ascontiguousarray(weight.T) is saved well.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/save.py" <<'PYTHON'
import sys
from importlib.metadata import version

import numpy as np
from safetensors.numpy import load, save

weight = np.arange(6, dtype=np.float32).reshape(2, 3)
loaded = load(save({"weight": weight.T}))["weight"]
print("safetensors", version("safetensors"), loaded.tolist())
assert loaded.shape == (3, 2) and weight.T.flags.f_contiguous
assert np.array_equal(loaded, weight.T) == (sys.argv[1] == "right")
assert np.array_equal(load(save({"weight": np.ascontiguousarray(weight.T)}))["weight"], weight.T)
PYTHON
for release in 0.7.0:right 0.8.0:wrong; do
    python3 -m venv --clear "$folder/venv"
    "$folder/venv/bin/pip" install --quiet --disable-pip-version-check safetensors=="${release%:*}" numpy==2.4.6
    "$folder/venv/bin/python" "$folder/save.py" "${release#*:}"
done
