"""Which products and sums are one fma in a kernel, as on a GPU: against exact arithmetic, and against what an H200 gave."""

import linecache
import math
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda, float32, float64
from numba.cuda import libdevice

from minllm.runtime.kernel import kernel
from minllm.sim import simulate, trace
from minllm.sim.fused import fma_of, vector_fma

ANSWERS = np.load(Path(__file__).parent / "gpu_answers.npz")
EXPRESSIONS = dict(ANSWERS["expressions"].tolist())
ENGINES = ["lanes", "threads"]


def compiled(source, name="kernel", **names):
    """The function `name` of a source text."""
    file = f"<{name} {hash(source)}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    space = dict(math=math, cuda=cuda, float32=float32, float64=float64, libdevice=libdevice, **names)
    exec(compile(source, file, "exec"), space)
    return space[name]


# What an H200 gave


def answered(name, kind):
    """(what the simulator gives for an expression, what the H200 gave, the arguments)."""
    fast, _, stem = name.rpartition("/")
    body = f"        x, y, z = xs[i], ys[i], zs[i]\n        out[i] = {EXPRESSIONS[name]}\n"
    function = compiled(f"def kernel(xs, ys, zs, out):\n    i = cuda.grid(1)\n    if i < out.size:\n{body}")
    with np.errstate(all="ignore"):
        given = [ANSWERS[one].astype(kind) for one in "xyz"]
    out = np.zeros(given[0].size, kind)
    simulate(cuda.jit(fastmath=bool(fast))(function), -(-out.size // 128), 128, *given, out)
    return out, ANSWERS[f"{name.replace('/', '__')}__{kind}"], given


def assert_same_bits(found, expected):
    """Whether two arrays are the same to the bit; a NaN may be another one."""
    nan = np.isnan(found) & np.isnan(expected)
    unsigned = f"u{found.dtype.itemsize}"
    np.testing.assert_array_equal(np.where(nan, 0, found.view(unsigned)), np.where(nan, 0, expected.view(unsigned)))


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", [name for name in EXPRESSIONS if f"{name}__float64" in ANSWERS])
def test_sums_of_products_are_those_of_an_h200(name, kind):
    found, expected, _ = answered(name, kind)
    assert_same_bits(found, expected)


def test_kept_answers_would_show_a_product_that_is_rounded():
    x, y, z = (ANSWERS[one] for one in "xyz")
    with np.errstate(all="ignore"):
        twice = x * y + z
    assert 0.1 < np.mean(twice != ANSWERS["sum__float32"])


# The rule, against exact arithmetic


def nearest(exact, kind=np.float32):
    """The number of a type nearest to a Fraction, of two the even one."""
    middle = kind(float(exact))
    around = [one for one in (np.nextafter(middle, kind(-np.inf)), middle, np.nextafter(middle, kind(np.inf))) if np.isfinite(one)]
    apart = [abs(Fraction(float(one)) - exact) for one in around]
    return min(zip(apart, around), key=lambda pair: (pair[0], int(pair[1].view(f"u{pair[1].itemsize}")) & 1))[1]


def once(a, b, c):
    """a * b + c of vectors, rounded once."""
    return np.array([nearest(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))) for x, y, z in zip(a, b, c)])


DEVICE = """
@cuda.jit(device=True)
def product(a, b):
    return a * b

@cuda.jit(device=True)
def total(a, b):
    return a + b

@cuda.jit(device=True)
def both(a, b):
    return a * b, a + b

@cuda.jit(device=True)
def squared_and_stored(a, out, i):
    square = a * a
    out[1, i] = square
    return square
"""
# What a kernel does with the numbers a, b, c and d that it has loaded and the scalar argument s -> out[0, i].
CASES = {
    "a sum": ("out[0, i] = a * b + c", lambda a, b, c, d, s: once(a, b, c)),
    "the product on the right": ("out[0, i] = c + a * b", lambda a, b, c, d, s: once(a, b, c)),
    "a difference": ("out[0, i] = a * b - c", lambda a, b, c, d, s: once(a, b, -c)),
    "a subtracted product": ("out[0, i] = c - a * b", lambda a, b, c, d, s: once(-a, b, c)),
    "a negative": ("out[0, i] = -(a * b) - c", lambda a, b, c, d, s: once(-a, b, -c)),
    "the older of two products": ("out[0, i] = c * d + a * b", lambda a, b, c, d, s: once(a, b, c * d)),
    "the left of a difference": ("out[0, i] = c * d - a * b", lambda a, b, c, d, s: once(c, d, -(a * b))),
    "a negative and a product": ("out[0, i] = -(a * b) + c * d", lambda a, b, c, d, s: once(c, d, -(a * b))),
    "three squares": ("out[0, i] = a * a + b * b + c * c", lambda a, b, c, d, s: once(c, c, once(a, a, b * b))),
    "a polynomial": ("out[0, i] = (a * b + c) * b + d", lambda a, b, c, d, s: once(once(a, b, c), b, d)),
    "nothing to fuse": ("out[0, i] = a * (b + c)", lambda a, b, c, d, s: a * (b + c)),
    "a variable": ("t = a * b\nout[0, i] = t + c", lambda a, b, c, d, s: once(a, b, c)),
    "augmented assignments": ("t = a\nt *= b\nt -= c\nout[0, i] = t", lambda a, b, c, d, s: once(a, b, -c)),
    "two sums": ("t = a * b\nout[1, i] = t - d\nout[0, i] = t + c", lambda a, b, c, d, s: once(a, b, c)),
    "a product that is stored too": ("t = a * b\nout[1, i] = t\nout[0, i] = t + c", lambda a, b, c, d, s: a * b + c),
    "the same product, stored": ("out[0, i] = a * b + c\nout[1, i] = b * a", lambda a, b, c, d, s: a * b + c),
    "a product that is multiplied too": ("t = a * b\nout[1, i] = t * d\nout[0, i] = t + c", lambda a, b, c, d, s: a * b + c),
    "a product in a comparison": ("t = a * b\nif t > d:\n    out[1, i] = d\nout[0, i] = t + c", lambda a, b, c, d, s: a * b + c),
    "the largest": ("out[0, i] = max(a * b, c) + d", lambda a, b, c, d, s: np.maximum(a * b, c) + d),
    "one of two values": ("t = a * b if c > d else d\nout[0, i] = t + c", lambda a, b, c, d, s: np.where(c > d, a * b, d) + c),
    "sums in two branches": ("t = a * b\nif i % 2:\n    out[0, i] = t + c\nelse:\n    out[0, i] = t - c\n    out[1, i] = c",
                             lambda a, b, c, d, s: np.where(np.arange(64) % 2, a * b + c, a * b - c)),
    "a factor that is an argument": ("t = a * s\nif i % 2:\n    out[0, i] = t + c\nelse:\n    out[0, i] = t - c\n    out[1, i] = c",
                                     lambda a, b, c, d, s: np.where(np.arange(64) % 2, once(a, s, c), once(a, s, -c))),
    "one sum, in a branch": ("t = a * b\nif i % 2:\n    cuda.threadfence()\n    out[0, i] = t + c",
                             lambda a, b, c, d, s: np.where(np.arange(64) % 2, once(a, b, c), 0)),
    "one sum, behind a branch": ("t = a * b\ne = c\nif i % 2:\n    e = x[1, i - 1]\nout[0, i] = t + e",
                                 lambda a, b, c, d, s: once(a, b, np.where(np.arange(64) % 2, np.roll(b, 1), c))),
    "one sum, behind a store": ("t = a * b\nout[0, i] = c\nif i % 2:\n    cuda.threadfence()\n    out[0, i] = t + c",
                                lambda a, b, c, d, s: np.where(np.arange(64) % 2, a * b + c, c)),
    "a branch on a factor": ("t = a * b\nif a > d:\n    cuda.threadfence()\n    out[0, i] = t + c",
                             lambda a, b, c, d, s: np.where(a > d, once(a, b, c), 0)),
    "a branch on both factors": ("t = a * b\nif a > b:\n    cuda.threadfence()\n    out[0, i] = t + c",
                                 lambda a, b, c, d, s: np.where(a > b, a * b + c, 0)),
    "a loop": ("t = c\nfor j in range(i % 5):\n    t += x[0, j] * x[1, j]\nout[0, i] = t",
               lambda a, b, c, d, s: np.array([summed(a, b, c[i : i + 1], i % 5) for i in range(64)])),
    "a product from before a loop": ("t = c\nfor j in range(i % 3):\n    t += a * b\nout[0, i] = t",
                                     lambda a, b, c, d, s: np.select([np.arange(64) % 3 == 0, np.arange(64) % 3 == 1], [c, c + a * b],
                                                                     c + a * b + a * b)),
    "a tuple": ("t = (a * b, c)\nout[0, i] = t[0] + t[1]", lambda a, b, c, d, s: once(a, b, c)),
    "a square": ("out[0, i] = a ** 2 + b", lambda a, b, c, d, s: once(a, a, b)),
    "a cube": ("out[0, i] = a ** 3 - b", lambda a, b, c, d, s: once(a, a * a, -b)),
    "an fma": ("out[0, i] = cuda.fma(a, b, c) + d", lambda a, b, c, d, s: once(a, b, c) + d),
    "a product of another type": ("out[0, i] = (float64(a * b) + float64(c)) * 1.3",
                                  lambda a, b, c, d, s: ((np.float64(a * b) + np.float64(c)) * 1.3).astype(np.float32)),
    "device functions": ("out[0, i] = total(product(a, b), c)", lambda a, b, c, d, s: once(a, b, c)),
    "two products in a device function": ("out[0, i] = total(product(c, d), a * b)", lambda a, b, c, d, s: once(c, d, a * b)),
    "a product in a tuple of results": ("t, u = both(a, b)\nout[0, i] = t - c", lambda a, b, c, d, s: once(a, b, -c)),
    "a product that a device function stores": ("out[0, i] = squared_and_stored(a, out, i) + b", lambda a, b, c, d, s: a * a + b),
    "an argument": ("t = a * b\nout[1, i] = total(t, d)\nout[0, i] = t + c", lambda a, b, c, d, s: once(a, b, c)),
}  # fmt: skip
SCALAR = np.float32(1.7)


def summed(a, b, start, count):
    for j in range(count):
        start = once(a[j : j + 1], b[j : j + 1], start)
    return start[0]


def function_of(body):
    """The kernel with a body of CASES."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    head = f"{DEVICE}\ndef kernel(x, s, out):\n    i = cuda.threadIdx.x\n    a, b, c, d = x[0, i], x[1, i], x[2, i], x[3, i]\n"
    return compiled(head + lines)


def all_cases():
    """(a kernel of all CASES, each with numbers of its own, {name: its lines})."""
    source, lines = f"{DEVICE}\ndef kernel(x_of, s, out_of):\n    i = cuda.threadIdx.x\n", {}
    for number, (name, (body, _)) in enumerate(CASES.items()):
        begin = source.count("\n") + 1
        source += f"    x, out = x_of[{number}], out_of[{number}]\n    a, b, c, d = x[0, i], x[1, i], x[2, i], x[3, i]\n"
        source += "".join(f"    {line}\n" for line in body.splitlines())
        lines[name] = range(begin, source.count("\n") + 1)
    return compiled(source), lines


@pytest.fixture(scope="module")
def numbers():
    """Four rows of 64 numbers, products and sums of which are often inexact."""
    return np.random.default_rng(7).standard_normal((4, 64)).astype(np.float32)


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_rounds_where_a_gpu_does(name, numbers):
    body, expected = CASES[name]
    function, wanted = function_of(body), expected(*numbers, np.full(64, SCALAR))
    for engine in ENGINES:
        out = np.zeros((2, 64), np.float32)
        simulate(function, 1, 64, numbers, SCALAR, out, engine=engine)
        np.testing.assert_array_equal(out[0].view(np.uint32), wanted.astype(np.float32).view(np.uint32), err_msg=engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_kernel_without_contraction_rounds_twice(engine, numbers):
    def sums(x, out):
        i = cuda.threadIdx.x
        out[0, i] = x[0, i] * x[1, i] + x[2, i]

    found = np.zeros((2, 2, 64), np.float32)
    for out, made in zip(found, (kernel(sums).without_contraction(), cuda.jit(debug=True, opt=False)(sums))):
        simulate(made, 1, 64, numbers, out, engine=engine)
    a, b, c, _ = numbers
    np.testing.assert_array_equal(found[:, 0], [a * b + c] * 2)
    assert (a * b + c != once(a, b, c)).any()


def test_a_trace_counts_an_fma_as_two_operations(numbers):
    def sums(x, out):
        i = cuda.threadIdx.x
        out[0, i] = x[0, i] * x[1, i] - x[2, i]

    counts = trace(sums, 1, 64, numbers, np.zeros((2, 64), np.float32))
    assert counts.flops == {"float32 multiply-add": 128}


def test_an_undefined_value_stays_one_in_an_fma():
    def sums(x, out):
        i = cuda.threadIdx.x
        t = x[i] * cuda.shfl_down_sync(0xFFFF, x[i], 8) + x[i] if i < 16 else x[i]
        out[i] = t

    with pytest.raises(Exception, match="undefined value is stored"):
        simulate(sums, 1, 32, np.ones(32, np.float32), np.zeros(32, np.float32), detect=True)


# The function itself

SIXTEEN_BITS = st.integers(0, 2**16 - 1)


@settings(deadline=None)
@given(st.lists(SIXTEEN_BITS, min_size=3, max_size=3), st.sampled_from([np.float16, ml_dtypes.bfloat16]))
def test_16_bits_are_rounded_once(bits, kind):
    numbers = [np.array([one], np.uint16).view(kind)[0] for one in bits]
    exact = [float(one) for one in numbers]
    with np.errstate(all="ignore"):
        found = fma_of(kind)(*numbers)
        vector = vector_fma(kind)(*(np.full(3, one) for one in numbers))
    assert type(found) is kind and vector.dtype == kind and (found == vector[0] or found != found)
    if all(map(math.isfinite, exact)) and np.isfinite(float(found)):
        wanted = Fraction(exact[0]) * Fraction(exact[1]) + Fraction(exact[2])
        own = int(np.array([found]).view(np.uint16)[0])
        away = [np.array([(own + step) & 0xFFFF], np.uint16).view(kind)[0] for step in (-1, 1)]
        distance = abs(Fraction(float(found)) - wanted)
        assert all(distance <= abs(Fraction(float(one)) - wanted) for one in away if np.isfinite(float(one)))


@settings(deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=3, max_size=3))
def test_float32_is_rounded_once(numbers):
    numbers = [np.float32(one) for one in numbers]
    exact = Fraction(float(numbers[0])) * Fraction(float(numbers[1])) + Fraction(float(numbers[2]))
    with np.errstate(all="ignore"):
        found = fma_of(np.float32)(*numbers)
        assert type(found) is np.float32
        assert vector_fma(np.float32)(*(np.full(9, one) for one in numbers)).tolist() == [found] * 9
        if np.isfinite(found) and exact:
            assert found == nearest(exact)


def test_operands_of_other_types_are_converted():
    with pytest.raises(TypeError):
        fma_of(np.float32)(np.float32(1))
    assert fma_of(np.float32)(2, np.float16(0.5), np.float32(1)) == 2 and type(fma_of(np.float32)(2, 1, 1)) is np.float32
    assert fma_of(np.float64)(np.float32(0.1), 3, 1) == float(np.float32(0.1)) * 3 + 1


# How far functions of float32, and those of fastmath=True, are from an H200: an absolute number, and units in the last place. Arguments
# that are denormal, infinite or beyond 2**126 are not compared.
BOUNDS = {
    "silu": (0, 2),
    "gelu": (2**-22, 0),
    "rms": (0, 2),
    "exp_plus": (2**-20, 0),
    "fast/divide": (0, 1),
    "fast/reciprocal": (0, 1),
    "fast/sin": (2**-18, 0),
    "fast/cos": (2**-18, 0),
    "fast/exp": (0, 2),
    "fast/log": (2**-22, 0),
    "fast/sqrt": (0, 1),
    "fast/power": (0, 4),
    "fast/tanh": (2**-17, 0),
    "fast/denormal_sum": (0, 0),
}


def test_every_kept_function_has_a_bound():
    assert set(BOUNDS) == {name for name in EXPRESSIONS if f"{name.replace('/', '__')}__float64" not in ANSWERS}


@pytest.mark.parametrize("name", BOUNDS)
def test_functions_are_as_near_to_an_h200_as_the_page_says(name):
    found, expected, (x, _, _) = answered(name, "float32")
    normal = np.isfinite(x) & (np.abs(x) < 2.0**126) & ((x == 0) | (np.abs(x) > 2.0**-126)) & (np.arange(x.size) < 250)
    absolute, units = BOUNDS[name]
    allowed = absolute + units * np.spacing(np.abs(expected)).astype(np.float64)
    with np.errstate(invalid="ignore"):
        distance = np.abs(found.astype(np.float64) - expected)
    np.testing.assert_array_equal(np.isfinite(found)[normal], np.isfinite(expected)[normal])
    assert (distance <= allowed)[normal & np.isfinite(expected)].all()


@pytest.mark.parametrize("engine", ["lanes", "threads"])
def test_a_product_that_a_branch_replaces_is_returned_as_a_number(engine):
    @cuda.jit(device=True)
    def folded(x, y):
        value = x * y
        if x > 0:
            value = 1 - value
        return value

    def kernel_of_folded(x, y, out):
        i = cuda.grid(1)
        out[i] = y[i] * folded(x[i], y[i])

    x, y = np.random.default_rng(3).standard_normal((2, 16))
    out = np.zeros(16)
    simulate(kernel_of_folded, 1, 16, x, y, out, engine=engine)
    np.testing.assert_allclose(out, y * np.where(x > 0, 1 - x * y, x * y), rtol=1e-15)


@pytest.mark.parametrize("engine", ["lanes", "threads"])
def test_a_variable_is_a_product_in_some_threads_and_a_number_in_others(engine):
    @cuda.jit(device=True)
    def replaced(value, x, y):
        if x > 0:
            value = x - y
            return value
        return value + y

    def kernel_of_both(x, y, out):
        i = cuda.grid(1)
        kept = x[i] - y[i]
        if x[i] > 0:
            kept = x[i] * x[i]
            out[0, i] = kept + y[i]
        else:
            out[0, i] = kept
        out[1, i] = replaced(x[i] * y[i], x[i], y[i])

    x, y = np.random.default_rng(4).standard_normal((2, 16))
    out = np.zeros((2, 16))
    simulate(kernel_of_both, 1, 16, x, y, out, engine=engine)
    np.testing.assert_allclose(out, [np.where(x > 0, x * x + y, x - y), np.where(x > 0, x - y, x * y + y)], rtol=1e-12)
