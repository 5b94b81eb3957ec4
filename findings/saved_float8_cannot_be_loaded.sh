#!/usr/bin/env bash
# ml_dtypes 0.6.0 with numpy 2.4.6: .npy and .npz files of float8_e5m2.
#
# Input: an array of each type of ml_dtypes, written by numpy.save, numpy.savez and numpy.lib.format.open_memmap.
# Expected: what bfloat16 and float8_e4m3fn do: the file has raw bytes of type V2 or V1, and numpy.load(file).view(type) gives the
# numbers.
# Seen: so do all types but float8_e5m2. It is written as '<f1', a float of one byte, without a message, and numpy.load raises ValueError
# ("descr is not a valid dtype descriptor"), also with allow_pickle and mmap_mode: the file can only be read past its header. In an .npz
# the other arrays stay readable. A program that is tested with one float8 type loses what it saves of the other, a cache of keys in E5M2
# for example. Its dtype has kind 'f', where all others have 'V'; numpy.asarray of its __array_interface__ fails in the same way.
# array.view(numpy.uint8) is saved and loaded well.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check numpy==2.4.6 ml_dtypes==0.6.0
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys
from pathlib import Path

import ml_dtypes
import numpy as np

names = "bfloat16 float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu"
names += " float6_e2m3fn float6_e3m2fn float4_e2m1fn int2 int4 uint2 uint4"
file, archive = Path(sys.argv[1]) / "array.npy", Path(sys.argv[1]) / "arrays.npz"
for name in names.split():
    dtype = np.dtype(getattr(ml_dtypes, name))
    array = np.ones(3).astype(dtype)
    np.save(file, array)
    try:
        loaded = np.load(file)
        found = f"loads as {loaded.dtype}"
        assert name != "float8_e5m2" and dtype.kind == "V" and (loaded.view(dtype) == array).all()
    except ValueError as error:
        found = f"{type(error).__name__}: {error}"
        assert name == "float8_e5m2" and dtype.kind == "f" and "'<f1'" in str(error)
    print(f"{name} is written as {np.lib.format.dtype_to_descr(dtype)}, {found}")

weights = np.array([1.0, -1.75, 57344.0]).astype(ml_dtypes.float8_e5m2)
np.savez(archive, weights=weights, others=np.ones(2), raw=weights.view(np.uint8))
np.lib.format.open_memmap(file, "w+", dtype=weights.dtype, shape=weights.shape)[:] = weights
for read in (lambda: np.load(archive)["weights"], lambda: np.load(file, allow_pickle=True), lambda: np.load(file, mmap_mode="r")):
    try:
        raise AssertionError(read())
    except ValueError:
        continue
assert (np.load(archive)["others"] == 1).all() and (np.load(archive)["raw"].view(weights.dtype) == weights).all()
PYTHON
