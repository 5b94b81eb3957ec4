"""Branches that Numba takes when it compiles have no say in the types of variables: the simulator against Numba's compiler for the CPU."""

import re

import numba
import numpy as np
import pytest
from numba import cuda

from minllm.sim import simulate
from tests.sim.test_random_expressions import module_of

NAMES = """from types import SimpleNamespace

import numpy as np
from numba import int64

N, SCALE, MODE, FLAG, NONE, SIZES, TABLE, HALF = 2, 0.5, "sum", True, None, (1, 2), np.zeros(3), np.float32(0.5)
"""
CONDITIONS = """N == 3|N < -1|N == 1 + 2|SCALE > 1.0|SCALE < -0.5|HALF > 1|MODE == "max"|MODE != "sum"|"x" in MODE|"s" not in MODE|not FLAG
not N == 2|NONE|NONE is not None|TABLE is None|not SIZES|len(SIZES) == 3|SIZES[0] == 2|N + 1 == 4|-N == 2|N & 1|N - 2|SCALE * 0.0
N == 3 or SCALE > 1|i >= 0 and SCALE > 1|SCALE > 1 and i >= 0|i < 0 or SCALE > 1|3 <= N < 9|0 <= i < N < 1|not (N == 2 and FLAG)
x.ndim == 2|not x.ndim|x.size == -1|x is None|1 == 2|int64(2) == 3|N ** 2 == 5|0""".replace("\n", "|").split("|")
ASSIGNED = """2|N + 2|SIZES[0]|int64(2)|x.ndim|x.shape[0] + 9|2 if FLAG else 3|2 if i < 9 else 2""".split("|")
VALUES = """x[i] or 0.5|x[i] and 0.5
FLAG and x[i] or 0.5|N == 3 and 0.5 or x[i]|x[i] if MODE == "sum" else 0.5|0.5 if SIZES[0] == 2 else x[i]
0.5 if i >= 0 and N == 3 else x[i]""".replace("\n", "|").split("|")
LARGE = 2**53 + 1  # float64 rounds it to 2**53


LOOPS = ["N == 3", "SCALE > 1.0", "not FLAG", "i >= 0 and N == 3", "N + 1 == 4", "0"]


def rows():
    """The statements of each case; the last one stores an int64, or the float64 that it becomes beside 0.5."""
    for condition in CONDITIONS:
        yield "v = x[i]", f"if {condition}: v = 0.5", "out[{row}, i] = v"
    for condition in LOOPS:
        yield "v = x[i]", f"while {condition}: v = 0.5; break", "out[{row}, i] = v"
    for known in ASSIGNED:
        yield f"k = {known}", "v = x[i]", "if k == 3: v = 0.5", "out[{row}, i] = v"
    for value in VALUES:
        yield ("out[{row}, i] = " + value,)


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """(functions of one case each, what they store in int64[case, i] as compiled for the CPU)."""
    source, together = NAMES, "\n\ndef together(x, out, i):\n"
    for row, statements in enumerate(rows()):
        lines = "".join(f"    {one.format(row=row)}\n" for one in statements)
        source += f"\n\ndef case{row}(x, out, i):\n{lines}"
        together += re.sub(r"\b([vk])\b", rf"\g<1>{row}", lines)
    made = module_of(source + together, tmp_path_factory.mktemp("branches"))
    expected, compiled = np.zeros((row + 1, 8), np.int64), numba.njit(made.together)
    for i in range(8):
        compiled(np.full(8, LARGE), expected, i)
    return [getattr(made, f"case{number}") for number in range(row + 1)], expected


def kernel_of(device):
    """The kernel that calls a device function with its thread's number."""

    @cuda.jit
    def kernel(x, out):
        device(x, out, cuda.grid(1))

    return kernel


@pytest.mark.parametrize("engine", ["lanes", "threads"])
def test_a_branch_that_numba_drops_decides_no_type(cases, engine):
    functions, expected = cases
    found = np.zeros_like(expected)
    for function in functions:
        simulate(kernel_of(cuda.jit(device=True)(function)), 1, 8, np.full(8, LARGE), found, engine=engine)
    assert {LARGE - 1, LARGE} <= set(expected.ravel())
    different = np.flatnonzero((found != expected).any(axis=1))
    assert not different.size, [list(rows())[row] for row in different]
