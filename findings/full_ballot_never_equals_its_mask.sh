#!/usr/bin/env bash
# numba-cuda 0.30.4 with numba 0.68.1: the type of cuda.ballot_sync and cuda.match_any_sync.
#
# Input: kernels that ask whether all lanes of a warp agree, cuda.ballot_sync(0xffffffff, p) == 0xffffffff, that shift the ballot right by
# 31, and that compare the results of match_any_sync and cuda.activemask() with the same mask. Nothing runs on a GPU here: they are
# compiled to PTX.
# Expected: masks of 32 lanes are uint32, as cuda.activemask() and cuda.lanemask_lt() are, and as CUDA C has them: the comparison is true
# if all lanes vote for it, and the shift gives 1.
# Seen: ballot_sync and match_any_sync return int32, in which the ballot of all lanes is -1. The comparison is done in int64, where no
# int32 is 4294967295, so that the compiler puts the constant 0 in its place: the answer is "no", whatever the lanes say. The shift is
# arithmetic and gives -1. activemask() is compared as one would think, and so is uint32(cuda.ballot_sync(...)). No warning is given.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "numba-cuda[cu13]==0.30.4" "numba==0.68.1" "numpy==2.4.6"
cat >"$folder/kernels.py" <<'PYTHON'
from numba import cuda, int64, uint32


def votes(out, lanes):
    out[0] = cuda.ballot_sync(0xFFFFFFFF, cuda.laneid < lanes) == 0xFFFFFFFF


def matches(out, lanes):
    out[0] = cuda.match_any_sync(0xFFFFFFFF, lanes) == 0xFFFFFFFF


def shifted(out, lanes):
    out[0] = cuda.ballot_sync(0xFFFFFFFF, cuda.laneid < lanes) >> 31


def active(out, lanes):
    out[0] = cuda.activemask() == 0xFFFFFFFF


def unsigned(out, lanes):
    out[0] = uint32(cuda.ballot_sync(0xFFFFFFFF, cuda.laneid < lanes)) == 0xFFFFFFFF


for kernel, is_compared in ((votes, False), (matches, False), (active, True), (unsigned, True)):
    ptx, _ = cuda.compile_ptx(kernel, (int64[:], int64), cc=(8, 0))
    found = [line.strip() for line in ptx.splitlines() if "setp.eq" in line]
    print(f"{kernel.__name__}: {found or 'no comparison'}")
    assert bool(found) == is_compared
ptx, _ = cuda.compile_ptx(shifted, (int64[:], int64), cc=(8, 0))
print("shifted:", *[line.strip() for line in ptx.splitlines() if "shr" in line])
assert "shr.s32" in ptx
PYTHON
"$folder/venv/bin/python" -W ignore "$folder/kernels.py"
