"""libdevice, math and cuda.fp16 in a simulated kernel."""

import math

import numpy as np
import pytest
from numba import cuda, float32
from numba.cuda import libdevice, libdevicefuncs

from minllm.errors import SimulationError
from minllm.sim import simulate
from minllm.sim.cuda_math import SimulatedLibdevice

MISSING = ("_rd", "_ru", "_rz")
BESSEL = {f"{name}{suffix}" for name in ("j0", "j1", "jn", "y0", "y1", "yn", "remquo") for suffix in ("", "f")}


def test_nearly_all_names_of_libdevice_are_known():
    known, missing = SimulatedLibdevice(), set()
    for name in libdevicefuncs.functions:
        try:
            getattr(known, name.removeprefix("__nv_"))
        except SimulationError:
            missing.add(name.removeprefix("__nv_"))
    assert {name for name in missing if not name.endswith(MISSING)} == BESSEL
    assert len(libdevicefuncs.functions) - len(missing) == 243


@pytest.mark.parametrize(
    "name, arguments, expected",
    [
        ("byte_perm", (0x03020100, 0x07060504, 0x7531), 0x07050301),
        ("clz", (1,), 31),
        ("ffsll", (1 << 40,), 41),
        ("brev", (1,), -(2**31)),
        ("mulhi", (-1, 5), -1),
        ("umulhi", (-1, 5), 4),
        ("mul24", (-3, 5), -15),
        ("sad", (3, 10, 1), 8),
        ("llround", (-2.5,), -3),
        ("rint", (2.5,), 2.0),
        ("double2int_rz", (-2.7,), -2),
        ("double2int_rd", (-2.2,), -3),
        ("hiloint2double", (0x3FF00000, 0), 1.0),
        ("float_as_int", (1.0,), 0x3F800000),
        ("normcdf", (0.0,), 0.5),
        ("erfinv", (0.0,), 0.0),
        ("saturatef", (1.5,), 1.0),
        ("fdim", (5.0, 3.0), 2.0),
        ("exp10", (2.0,), 100.0),
        ("drcp_rn", (4.0,), 0.25),
        ("cospi", (1.0,), -1.0),
        ("tgamma", (5.0,), 24.0),
    ],
)
def test_values(name, arguments, expected):
    assert getattr(SimulatedLibdevice(), name)(*arguments) == expected


def test_pairs_and_ldexp():
    def kernel(x, out):
        out[0], out[1] = libdevice.sincosf(x[0])
        out[2] = math.ldexp(x[0], 3)
        fraction, exponent = math.frexp(x[1])
        out[3], out[4] = fraction, exponent

    out = np.zeros(5, np.float32)
    simulate(kernel, 1, 1, np.array([0.5, 12], np.float32), out)
    assert out.tolist() == [np.float32(math.sin(0.5)), np.float32(math.cos(0.5)), 4, 0.75, 4]


def test_half_precision():
    def kernel(x, out):
        out[0] = cuda.fp16.hadd(x[0], x[1])
        out[1] = cuda.fp16.hfma(x[0], x[1], x[0])
        out[2] = 1 if cuda.fp16.hgt(x[1], x[0]) else 0
        out[3] = float32(cuda.fp16.hsqrt(x[1]))

    out = np.zeros(4, np.float16)
    simulate(kernel, 1, 1, np.array([0.1, 2], np.float16), out)
    tenth = float(np.float16(0.1))
    assert out.tolist() == [np.float16(tenth + 2), np.float16(3 * tenth), 1, np.float16(2**0.5)]
