"""The error of functions, against an H200: NVIDIA's libdevice rounds otherwise than the simulator, which computes in float64.

The table has, for each function, the largest difference over 3,008 numbers, the argument where it was seen with the bits of the GPU's
result, and the GPU's results for special arguments. It has no bounds for fast_sinf and fast_powf, nor for functions under fastmath.
"""

import linecache
import math

import numba
import numpy as np
import pytest
from numba import cuda, float32
from numba.cuda import libdevice

from minllm.errors import SimulationError
from minllm.sim import simulate

nan, inf = math.nan, math.inf
SPECIAL_X, SPECIAL_Y = [0, -0.0, inf, -inf, nan, 1e-40, -1e-40, 3e38], [0, 1, 0, 2, 1, 1, 1, 2]

# expression, type of its arguments and of the result, ulps, arguments, bits of the result there, results for the special arguments
MEASURED = [
    ("abs(x) ** y", "float32", "float32", 1, (-8.140536, 0.8467743), 0x40BCEA5D, [1, 0, 1, inf, nan, 1e-40, 1e-40, inf]),
    ("math.pow(x, y)", "float32", "float32", 1, (3.8499382, -0.42273295), 0x3F10CB29, [1, -0.0, 1, inf, nan, 1e-40, -1e-40, inf]),
    ("abs(x) ** 0.5", "float32", "float64", 1, (-2.9796953,), 0x3FFB9E6E4A4F71BC,
     [0, 0, inf, inf, nan, 9.999973050521066e-21, 9.999973050521066e-21, 1.7320508091559426e+19]),
    ("math.sin(x)", "float32", "float32", 1, (0.34192768,), 0x3EABACF1, [0, -0.0, nan, nan, nan, 1e-40, -1e-40, 0.87490493]),
    ("math.cos(x)", "float32", "float32", 1, (-5.1030707,), 0x3EC2FAB1, [1, 1, nan, nan, nan, 1, 1, -0.48429477]),
    ("math.tan(x)", "float32", "float32", 2, (7.172358,), 0x3F9DC301, [0, -0.0, nan, nan, nan, 1e-40, -1e-40, -1.8065544]),
    ("math.exp(x)", "float32", "float32", 1, (0.38601205,), 0x3FBC4D16, [1, 2.7182817, 7.389056]),
    ("math.log(abs(x))", "float32", "float32", 1, (5.6972637,), 0x3FDEB7DC, [-inf, -inf, inf, inf, nan, -92.10341, -92.10341, 88.59685]),
    ("math.log2(abs(x))", "float32", "float32", 1, (-1.049632,), 0x3D8F1F1A,
     [-inf, -inf, inf, inf, nan, -132.87714, -132.87714, 127.81823]),
    ("math.log1p(abs(x))", "float32", "float32", 1, (-5.1030707,), 0x3FE78680, [0, 0, inf, inf, nan, 1e-40, 1e-40, 88.59685]),
    ("math.expm1(x)", "float32", "float32", 1, (0.38601205,), 0x3EF13456, [0, 1.7182819, 6.389056]),
    ("math.tanh(x)", "float32", "float32", 2, (-0.3404401,), 0xBEA7DE9A, [0, -0.0, 1, -1, nan, 1e-40, -1e-40, 1]),
    ("math.sinh(x)", "float32", "float32", 2, (-2.0922482,), 0xC07F59B8, [0, 1.1752012, 3.6268604]),
    ("math.erf(x)", "float32", "float32", 1, (-2.0252988,), 0xBF7EEE05, [0, -0.0, 1, -1, nan, 1.12837e-40, -1.12837e-40, 1]),
    ("math.erfc(abs(x))", "float32", "float32", 4, (5.6389694,), 0x26DC2020, [1, 1, 0, 0, nan, 1, 1, 0]),
    ("math.atan(x)", "float32", "float32", 1, (-0.96432155,), 0xBF4469A3,
     [0, -0.0, 1.5707964, -1.5707964, nan, 1e-40, -1e-40, 1.5707964]),
    ("math.asinh(x)", "float32", "float32", 1, (0.34192768,), 0x3EABD2D4, [0, -0.0, inf, -inf, nan, 1e-40, -1e-40, 89.28999]),
    ("math.sqrt(abs(x))", "float32", "float32", 0, (0.34192768,), 0x3F15B1E7,
     [0, 0, inf, inf, nan, 9.999973e-21, 9.999973e-21, 1.7320508e+19]),
    ("math.gamma(abs(x))", "float32", "float32", 2, (-7.53883,), 0x44FC4D06, [inf, inf, inf, inf, nan, inf, inf, inf]),
    ("math.lgamma(abs(x))", "float32", "float32", 3, (11.27986,), 0x417C42A4, [inf, inf, inf, inf, nan, 92.10341, 92.10341, inf]),
    ("libdevice.rsqrtf(abs(x))", "float32", "float32", 1, (0.34192768,), 0x3FDAE605,
     [inf, inf, 0, 0, nan, 1.0000027e+20, 1.0000027e+20, 5.773503e-20]),
    ("float32(1) / math.sqrt(abs(x))", "float32", "float32", 0, (0.34192768,), 0x3FDAE606,
     [inf, inf, 0, 0, nan, 1.0000027e+20, 1.0000027e+20, 5.773503e-20]),
    ("math.exp(x)", "float64", "float64", 1, (0.9708825349807739,), 0x40051F47BF390E99,
     [1, 2.718281828459045, 7.38905609893065]),
    ("math.sin(x)", "float64", "float64", 1, (-5.2738423347473145,), 0x3FEB1661DE99AA55,
     [0, -0.0, nan, nan, nan, 9.99994610111476e-41, -9.99994610111476e-41, 0.8749048877644344]),
    ("libdevice.fast_expf(x)", "float32", "float32", 3, (-2.8843184,), 0x3D64EFEB, [1, 2.7182817, 7.389056]),
    ("libdevice.tanhf(x)", "float32", "float32", 2, (-0.34248656,), 0xBEA8CDD7, [0, 0.7615942, 0.9640276]),
    ("math.hypot(x, y)", "float32", "float32", 1, (13.597475, -0.4546629), 0x4159AE63, [0, 1, inf, inf, nan, 1, 1, 3e+38]),
    ("math.atan2(x, y)", "float32", "float32", 1, (-0.5606444, 1.1508675), 0xBEE818D3,
     [0, -0.0, 1.5707964, -1.5707964, nan, 1e-40, -1e-40, 1.5707964]),
    ("math.exp(x)", "float16", "float16", 0, (0.386,), 0x3DE2, [1, 2.719, 7.39]),
    ("x ** float32(3)", "float32", "float32", 1, (-2.9796953,), 0xC1D3A4D1, [0, -0.0, inf, -inf, nan, 0, -0.0, inf]),
    ("x ** 2.0", "float32", "float64", 1, (-2.0252988,), 0x4010684787C0C041,
     [0, 0, inf, inf, nan, 9.999892202520028e-81, 9.999892202520028e-81, 9.000000032986535e+76]),
    ("math.log10(abs(x))", "float32", "float32", 2, (7.959134,), 0x3F669F26,
     [-inf, -inf, inf, inf, nan, -40.000004, -40.000004, 38.477123]),
    ("libdevice.normcdff(x)", "float32", "float32", 3, (-0.8099483,), 0x3E560029, [0.5, 0.8413447, 0.97724986]),
    ("libdevice.rcbrtf(x)", "float32", "float32", 1, (-1.5278618,), 0xBF5E44D4,
     [inf, -inf, 0, -0.0, nan, 2.1544386e+13, -2.1544386e+13, 1.4938016e-13]),
    ("libdevice.exp10f(x)", "float32", "float32", 2, (-0.34034804,), 0x3EE9D77A, [1, 10, 100]),
    ("libdevice.cospif(x)", "float32", "float32", 1, (13.597475,), 0x3E9A5964, [1, 1, nan, nan, nan, 1, 1, 1]),
    ("libdevice.fast_fdividef(x, y)", "float32", "float32", 2, (10.767069, 0.7582572), 0x41633237,
     [nan, -0.0, inf, -inf, nan, 1e-40, -1e-40, 1.5e+38]),
    ("libdevice.erfinvf(x)", "float32", "float32", 2, (0.058100924,), 0x3D53179C, [0, inf, nan]),
]  # fmt: skip


def kernel_of(expression):
    """out[i] = expression of x = xs[i] and y = ys[i]."""
    source = f"def kernel(xs, ys, out):\n    for i in range(out.size):\n        x, y = xs[i], ys[i]\n        out[i] = {expression}\n"
    name = f"<function {expression}>"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    space = dict(__name__=__name__, cuda=cuda, math=math, libdevice=libdevice, float32=float32)
    exec(compile(source, name, "exec"), space)
    return space["kernel"]


def ulps(found, expected):
    """The distance of two arrays of finite numbers of one type, in numbers between them."""
    kind = f"i{found.dtype.itemsize}"
    ordered = [np.where(bits < 0, np.iinfo(kind).min - bits, bits) for bits in (found.view(kind), expected.view(kind))]
    return np.abs(ordered[0].astype(object) - ordered[1].astype(object))  # exact, as float64 would not be for 64 bits


@pytest.mark.parametrize("expression, source, dtype, most, point, bits, specials", MEASURED, ids=[row[0] for row in MEASURED])
def test_a_function_is_within_the_measured_distance_of_a_gpu(expression, source, dtype, most, point, bits, specials):
    xs = np.array([point[0], *np.array(SPECIAL_X if len(specials) == 8 else [0, 1, 2], np.float32)], source)
    ys = np.array([point[-1], *SPECIAL_Y[: len(specials)]], source)
    found, size = np.zeros(xs.size, dtype), np.dtype(dtype).itemsize
    simulate(kernel_of(expression), 1, 1, xs, ys, found)
    expected = np.array([0, *specials], dtype)
    expected[:1] = np.array([bits], f"u{size}").view(dtype)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(found[~finite], expected[~finite])
    assert (ulps(found[finite], expected[finite]) <= most).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_neighbours_are_one_ulp_apart(dtype):
    """Across powers of two and zero, and where float64 cannot count the 64 bits of numbers."""
    numbers = np.array([1, 2, -2, 0.1, -0.3, 7.25], dtype)
    assert (ulps(np.nextafter(numbers, dtype(np.inf)), numbers) == 1).all()
    smallest = np.nextafter(dtype(0), dtype(1))
    assert (ulps(np.array([smallest, 3 * smallest]), np.array([-smallest, -smallest])) == [2, 4]).all()


@cuda.jit(device=True)
def scaled(x, by=2, plus=1):
    return x * by + plus


@pytest.mark.parametrize("engine", ["lanes", "threads"])
def test_keyword_arguments_of_a_device_function(engine):
    @cuda.jit
    def kernel(x):
        i = cuda.grid(1)
        if i < x.size:
            x[i] = scaled(x[i], plus=5) + scaled(plus=x[i], x=i, by=3) + scaled(x[i], 4)

    x = np.arange(7, 40, dtype=np.int64)
    i = np.arange(33)
    expected = (x * 2 + 5) + (i * 3 + x) + (x * 4 + 1)
    simulate(kernel, 2, 32, x, engine=engine)
    np.testing.assert_array_equal(x, expected)


@cuda.jit("int32(int32, int32)", device=True)
def whole_parts(x, by):
    return x // by


@pytest.mark.parametrize("engine", ["lanes", "threads"])
def test_keyword_arguments_have_the_types_of_the_signature(engine):
    @cuda.jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[0, i], out[1, i] = whole_parts(by=x[i] - x[i] + 2.9, x=x[i]), whole_parts(x[i], by=2.9)

    x = np.arange(7.75, 12)
    out = np.zeros((2, x.size))
    simulate(kernel, 1, 32, x, out, engine=engine)
    np.testing.assert_array_equal(out, [np.trunc(x) // 2] * 2)


@cuda.jit("int8(int32)", device=True)
def hundreds(x):
    if x % 2 == 0:
        return 0.4 * x
    return 100 * x


@cuda.jit("Tuple((int32, float32))(float64)", device=True)
def whole_and_tenth(x):
    return x, x * 0.1


@pytest.mark.parametrize("engine", ["lanes", "threads"])
def test_results_have_the_types_of_the_signature(engine):
    """As numba.njit, which has the same rule, computes them."""

    @cuda.jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[0, i] = hundreds(x[i]) * 3
            whole, tenth = whole_and_tenth(x[i] + 0.75)
            out[1, i], out[2, i] = whole * 10, tenth * 10

    x = np.arange(1, 12, dtype=np.int32)
    found = np.zeros((3, x.size))
    simulate(kernel, 1, 32, x, found, engine=engine)
    first = numba.njit("int8(int32)")(hundreds.py_func)
    second = numba.njit("Tuple((int32, float32))(float64)")(whole_and_tenth.py_func)
    expected = np.transpose([(first(one) * 3, *np.multiply(second(one + 0.75), 10)) for one in x])
    np.testing.assert_array_equal(found, expected)


def test_a_signature_does_not_convert_items_of_an_unpacked_tuple():
    @cuda.jit
    def kernel(x):
        pair = (x[0], 2.9)
        x[0] = whole_parts(*pair)

    with pytest.raises(SimulationError, match="converts an argument to int32.*one by one.*in kernel"):
        simulate(kernel, 1, 1, np.ones(1))
