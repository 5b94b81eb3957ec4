"""libdevice, math and cuda.fp16 in a simulated kernel."""

import itertools
import math

import numpy as np
import pytest
from ml_dtypes import bfloat16
from numba import cuda, float32
from numba.cuda import libdevice, libdevicefuncs

from minllm.machine.numba_cuda import types
from minllm.sim import simulate
from minllm.sim.cuda_math import SimulatedLibdevice


def test_every_name_of_libdevice_is_known():
    for name in libdevicefuncs.functions:
        assert callable(getattr(SimulatedLibdevice(), name.removeprefix("__nv_"))), name


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
        ("tgamma", (-1.0,), "nan"),
        ("dadd_rd", (1.0, 1e-30), 1.0),
        ("dadd_ru", (1.0, 1e-30), 1 + 2**-52),
        ("dadd_rz", (-1.0, 1e-30), -1 + 2**-53),
        ("fadd_rz", (3e38, 3e38), float(np.finfo(np.float32).max)),
        ("fadd_ru", (3e38, 3e38), math.inf),
        ("fdiv_rd", (1.0, 3.0), float(np.nextafter(np.float32(1 / 3), np.float32(0)))),
        ("fdiv_ru", (1.0, 3.0), float(np.float32(1 / 3))),
        ("fdiv_rd", (1.0, 0.0), math.inf),
        ("dsqrt_rd", (2.0,), float(np.nextafter(2**0.5, 0))),
        ("dsqrt_ru", (4.0,), 2.0),
        ("dsqrt_rz", (-4.0,), "nan"),
        ("fma_rz", (1 + 2**-52, 1 - 2**-52, -1.0), -(2**-104)),
        ("frcp_rz", (3.0,), float(np.nextafter(np.float32(1 / 3), np.float32(0)))),
        ("int2float_rz", (2**24 + 3,), float(2**24 + 2)),
        ("ull2double_ru", (-1,), 2.0**64),
        ("double2float_rd", (-1e-60,), -float(np.float32(1e-45))),
        ("remquo", (10.0, 3.0), (1.0, 3)),
        ("remquo", (-11.0, 3.0), (1.0, -4)),
        ("modf", (2.5,), (0.5, 2.0)),
        ("frexp", (12.0,), (0.75, 4)),
    ],
)
def test_values(name, arguments, expected):
    found = getattr(SimulatedLibdevice(), name)(*arguments)
    assert found != found if expected == "nan" else found == expected


@pytest.mark.parametrize(
    "name, arguments, expected",  # "libdevice User's Guide"
    [
        ("cospi", (math.inf,), math.nan),
        ("sincos", (math.inf,), (math.nan, math.nan)),
        ("erfcx", (10.0,), math.exp(100) * math.erfc(10)),
        ("erfcx", (30.0,), 0.01879588886141675),
        ("erfcx", (1e6,), 5.641895835474742e-07),
        ("erfcx", (-30.0,), math.inf),
        ("erfcx", (math.inf,), 0.0),
        ("logb", (0.0,), -math.inf),
        ("logb", (-math.inf,), math.inf),
        ("logb", (12.0,), 3.0),
        ("logbf", (math.nan,), math.nan),
        ("ilogb", (0.0,), -(2**31)),
        ("ilogb", (math.nan,), -(2**31)),
        ("ilogbf", (-math.inf,), 2**31 - 1),
        ("ilogb", (-0.75,), -1),
        ("ldexp", (1.0, 5000), math.inf),
        ("tgamma", (math.inf,), math.inf),
        ("tgamma", (-math.inf,), math.nan),
        ("lgamma", (-math.inf,), math.inf),
        ("round", (-math.inf,), -math.inf),
        ("round", (0.49999999999999994,), 0.0),
        ("round", (-(2.0**52) - 1,), -(2.0**52) - 1),
    ],
)
def test_values_at_the_ends(name, arguments, expected):
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(getattr(SimulatedLibdevice(), name)(*arguments), expected, rtol=1e-13)


FLOATS = types.float32, types.float64


@pytest.mark.filterwarnings("ignore:overflow encountered")  # of arguments rounded to float32
def test_no_function_of_floats_raises():
    for name, (_, parameters) in libdevicefuncs.functions.items():
        kinds = [parameter.ty for parameter in parameters if not parameter.is_ptr]
        if all(kind in FLOATS for kind in kinds) and not name.startswith(("__nv_j", "__nv_y")):  # Bessel functions take long
            with np.errstate(all="ignore"):
                for arguments in itertools.product((0.0, -1.5, 710.0, 1e308, -math.inf, math.nan), repeat=len(kinds)):
                    getattr(SimulatedLibdevice(), name.removeprefix("__nv_"))(*arguments)


@pytest.mark.parametrize(
    "name, arguments, expected",  # Abramowitz and Stegun, tables 9.1 to 9.4
    [
        ("j0", (0.0,), 1.0),
        ("j0", (1.0,), 0.7651976865579665),
        ("j1", (10.0,), 0.04347274616886144),
        ("jn", (3, 2.0), 0.12894324947440208),
        ("jn", (2, 1000.0), -0.024777229528614703),
        ("y0", (1.0,), 0.08825696421567697),
        ("y0", (0.01,), -3.005455637083646),
        ("y1", (5.0,), 0.14786314339122683),
        ("yn", (2, 0.5), -5.441370837174266),
        ("y1", (-1.0,), math.nan),
    ],
)
def test_bessel_functions(name, arguments, expected):
    np.testing.assert_allclose(getattr(SimulatedLibdevice(), name)(*arguments), expected, rtol=1e-11)


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


def test_bfloat16_functions_of_numba():
    bf16 = pytest.importorskip("numba.cuda.bf16")
    from numba.cuda.bf16 import hmul

    def kernel(x, out):
        out[0] = bf16.hadd(x[0], x[1])
        out[1] = hmul(x[0], x[1])
        out[2] = bf16.hfma_sat(x[0], x[1], x[1])
        out[3] = bf16.bfloat16_to_float32(bf16.float32_to_bfloat16_ru(float32(1.001)))
        out[4] = bf16.bfloat16_to_int32_rz(bf16.hneg(x[1]))
        out[5] = bf16.bfloat16_as_int16(x[0])
        out[6] = 1 if bf16.hgtu(x[2], x[0]) and not bf16.hgt(x[2], x[0]) else 0
        out[7] = math.sqrt(x[1])

    out = np.zeros(8, np.float32)
    simulate(kernel, 1, 1, np.array([1.5, 2.25, np.nan], bfloat16), out)
    assert out.tolist() == [3.75, 3.375, 1, 1 + 2**-7, -2, 0x3FC0, 1, 1.5]
