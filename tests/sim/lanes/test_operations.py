"""Operators, casts, stores and functions in lanes give the bits that they give in threads, for pairs of edge values of every type."""

import itertools
import math

import ml_dtypes
import numpy as np
import pytest
from numba import cuda, float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64

from minllm import ptx
from tests.sim.lanes.engines import compare

INTEGERS = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
FLOATS = (np.float16, np.float32, np.float64)
STORED = (*INTEGERS, *FLOATS, ml_dtypes.bfloat16, np.bool_)
CASTS = (int8, int16, int32, int64, uint8, uint16, uint32, uint64, float32, float64)


def edges(dtype):
    """Edge values of a type."""
    if np.dtype(dtype).kind in "iu":
        limits = np.iinfo(dtype)
        wanted = [
            0,
            1,
            2,
            3,
            7,
            31,
            33,
            100,
            limits.max,
            limits.max - 1,
            limits.max // 2,
            limits.min,
            limits.min + 1,
            limits.min // 3,
            -1,
            -2,
        ]
        return np.array(sorted({one for one in wanted if limits.min <= one <= limits.max}), dtype)
    wanted = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        1.5,
        2.5,
        -2.5,
        0.1,
        3e-5,
        65504.0,
        1e5,
        3e9,
        -3e9,
        2.0**31,
        2.0**63,
        1e30,
        1e-40,
        math.inf,
        -math.inf,
        math.nan,
    ]
    with np.errstate(over="ignore"):
        return np.array(wanted).astype(dtype)


def pairs(first, second):
    """All pairs of edge values of two types, as two arrays."""
    found = list(itertools.product(edges(first), edges(second)))
    return np.array([a for a, _ in found], first), np.array([b for _, b in found], second)


def in_lanes(kernel, *arguments, size):
    """Compare the engines, and check that the lanes have run the launch."""
    assert compare(kernel, -(-size // 64), 64, *arguments, detect=False) is None


def integer_kernel(a, b, out, real, truth):
    """All operators of two integers of one type: integers to `out`, quotients to `real`, comparisons to `truth`."""
    i = cuda.grid(1)
    if i < a.size:
        x, y = a[i], b[i]
        out[0, i] = x + y
        out[1, i] = x - y
        out[2, i] = x * y
        out[3, i] = x & y
        out[4, i] = x | y
        out[5, i] = x ^ y
        out[6, i] = -x
        out[7, i] = ~x
        out[8, i] = (x + y) * x - y
        if y != 0:
            out[9, i] = x // y
            out[10, i] = x % y
            real[0, i] = x / y
        if y >= 0 and y < 32:
            out[11, i] = x << y
            out[12, i] = x >> y
        out[13, i] = abs(x)
        out[14, i] = min(x, y)
        out[15, i] = max(x, y)
        out[16, i] = y if x > 2 else x
        real[1, i] = x + 0.5
        real[2, i] = float32(x) * float32(y)
        truth[0, i] = x < y
        truth[1, i] = x <= y
        truth[2, i] = x == y
        truth[3, i] = x != y
        truth[4, i] = x > y
        truth[5, i] = x >= y
        truth[6, i] = not x
        truth[7, i] = 0 < x < y


@pytest.mark.parametrize("dtype", INTEGERS[:-1])
def test_integers(dtype):
    a, b = pairs(dtype, dtype)
    in_lanes(integer_kernel, a, b, np.zeros((17, a.size), np.int64), np.zeros((3, a.size)), np.zeros((8, a.size), bool), size=a.size)


def unsigned_kernel(a, b, out, real, truth):
    """All operators of two uint64."""
    i = cuda.grid(1)
    if i < a.size:
        x, y = a[i], b[i]
        out[0, i] = x + y
        out[1, i] = x - y
        out[2, i] = x * y
        out[3, i] = x ^ uint64(0x9E3779B97F4A7C15)
        out[4, i] = x * uint64(0x9E3779B97F4A7C15)
        if y != 0:
            out[5, i] = x // y
            out[6, i] = x % y
        out[7, i] = x >> uint64(7)
        out[8, i] = uint64(uint32(x)) << uint64(31)
        out[9, i] = uint64(0x9E3779B97F4A7C15) if x < y else x
        out[10, i] = abs(x)
        real[0, i] = float64(x)
        real[1, i] = float32(x)
        truth[0, i] = x < y
        truth[1, i] = x <= y
        truth[2, i] = x == y
        truth[3, i] = x > y


def test_uint64():
    a, b = pairs(np.uint64, np.uint64)
    in_lanes(unsigned_kernel, a, b, np.zeros((11, a.size), np.uint64), np.zeros((2, a.size)), np.zeros((4, a.size), bool), size=a.size)


def float_kernel(a, b, out, truth):
    """All operators of two floats."""
    i = cuda.grid(1)
    if i < a.size:
        x, y = a[i], b[i]
        out[0, i] = x + y
        out[1, i] = x - y
        out[2, i] = x * y
        out[3, i] = x / y
        out[4, i] = -x
        out[5, i] = abs(x)
        out[6, i] = max(x, y)
        out[7, i] = min(x, y)
        out[8, i] = x + 3
        out[9, i] = x * y + x
        out[10, i] = x if x < y else y
        out[11, i] = x // y
        out[12, i] = x % y
        truth[0, i] = x < y
        truth[1, i] = x <= y
        truth[2, i] = x == y
        truth[3, i] = x != y
        truth[4, i] = x > y or y != y


@pytest.mark.covering("first", "second")
@pytest.mark.parametrize("first, second", list(itertools.product((*FLOATS, ml_dtypes.bfloat16), repeat=2)))
def test_floats(first, second):
    if (first is ml_dtypes.bfloat16) != (second is ml_dtypes.bfloat16):
        second = first
    a, b = pairs(first, second)
    out = np.zeros((13, a.size), first if first is second else np.float64)
    in_lanes(float_kernel, a, b, out, np.zeros((5, a.size), bool), size=a.size)


@pytest.mark.covering("given", "wanted")
@pytest.mark.parametrize("given, wanted", list(itertools.product((*INTEGERS, *FLOATS, ml_dtypes.bfloat16), CASTS)))
def test_casts(given, wanted):
    if given is ml_dtypes.bfloat16 and wanted is uint64:
        wanted = uint32  # the threads cannot convert to uint64

    def kernel(a, out):
        i = cuda.grid(1)
        if i < a.size:
            out[i] = wanted(a[i])

    a = edges(given)
    in_lanes(kernel, a, np.zeros(a.size, str(wanted)), size=a.size)


def store_kernel(a, out):
    """Stores of one type in an array of another."""
    i = cuda.grid(1)
    if i < a.size:
        out[i] = a[i]


@pytest.mark.covering("given", "stored")
@pytest.mark.parametrize("given, stored", list(itertools.product((*INTEGERS, *FLOATS), STORED)))
def test_stores(given, stored):
    a = edges(given)
    if given is np.uint64 and stored is ml_dtypes.bfloat16:
        a = a[a < 1 << 63]  # the threads refuse larger numbers
    in_lanes(store_kernel, a, np.zeros(a.size, stored), size=a.size)


ONE = (
    "sqrt",
    "exp",
    "log",
    "log2",
    "log10",
    "log1p",
    "expm1",
    "sin",
    "cos",
    "tan",
    "tanh",
    "atan",
    "erf",
    "floor",
    "ceil",
    "trunc",
    "fabs",
)


@pytest.mark.covering("name", "dtype")
@pytest.mark.parametrize("name, dtype", list(itertools.product(ONE, (np.float32, np.float64))))
def test_functions_of_math(name, dtype):
    function = getattr(math, name)

    def kernel(a, out):
        i = cuda.grid(1)
        if i < a.size:
            out[i] = function(a[i])

    a = np.concatenate([edges(dtype), np.random.default_rng(1).standard_normal(200).astype(dtype)])
    in_lanes(kernel, a, np.zeros(a.size, dtype), size=a.size)


@pytest.mark.parametrize("function", [math.pow, math.atan2, math.hypot, math.fmod, math.copysign], ids=lambda one: one.__name__)
def test_functions_of_two_numbers(function):
    def kernel(a, b, out):
        i = cuda.grid(1)
        if i < a.size:
            out[i] = function(a[i], b[i])

    a, b = pairs(np.float32, np.float32)
    in_lanes(kernel, a, b, np.zeros(a.size, np.float32), size=a.size)


UNARY = (ptx.ex2, ptx.rcp, ptx.rcp_rn, ptx.tanh_approx, ptx.float_as_uint)


@pytest.mark.parametrize("function", UNARY, ids=lambda one: one.__qualname__)
def test_instructions_of_a_float(function):
    def kernel(a, out):
        i = cuda.grid(1)
        if i < a.size:
            out[i] = function(a[i])

    a = np.concatenate([edges(np.float32), np.random.default_rng(1).standard_normal(300).astype(np.float32)])
    in_lanes(kernel, a, np.zeros(a.size, np.uint32 if function is ptx.float_as_uint else np.float32), size=a.size)


def test_instructions_of_two_floats():
    def kernel(a, b, out):
        i = cuda.grid(1)
        if i < a.size:
            out[0, i] = ptx.pack_bf16x2(a[i], b[i])
            out[1, i] = ptx.pack_f16x2(a[i], b[i])
            out[2, i] = ptx.pack_e4m3x2(a[i], b[i])
            out[3, i] = ptx.pack_e5m2x2(a[i], b[i])
            out[4, i] = ptx.pack_e4m3x4(a[i], b[i], b[i], float32(1))

    a, b = pairs(np.float32, np.float32)
    in_lanes(kernel, a, b, np.zeros((5, a.size), np.uint32), size=a.size)


def test_instructions_of_words():
    def kernel(a, b, c, out, real):
        i = cuda.grid(1)
        if i < a.size:
            x, y, z = a[i], b[i], c[i]
            out[0, i] = ptx.prmt(x, y, z)
            out[1, i] = ptx.shf_l_wrap(x, y, z)
            out[2, i] = ptx.dp4a(x, y, z)
            out[3, i] = ptx.dp4a_u32(x, y, z)
            out[4, i] = ptx.fma_f16x2(x, y, z)
            out[5, i] = ptx.fma_bf16x2(x, y, z)
            out[6, i] = ptx.max_f16x2(x, y)
            out[7, i] = cuda.popc(x) + 100 * cuda.clz(y)
            real[0, i], real[1, i] = ptx.unpack_bf16x2(x)
            real[2, i], real[3, i] = ptx.unpack_f16x2(y)
            real[4, i] = ptx.uint_as_float(z)
            real[5, i], real[6, i] = ptx.unpack_e4m3x2(x)
            real[7, i], real[8, i] = ptx.unpack_e5m2x2(y)
            out[8, i] = ptx.e4m3x2_to_f16x2(x)

    a, b, c = np.random.default_rng(0).integers(0, 1 << 32, (3, 2000), dtype=np.uint32)
    small = np.random.default_rng(0).standard_normal((3, 4000)).astype(ml_dtypes.bfloat16).view(np.uint32)
    for words in ((a, b, c), tuple(small)):
        size = words[0].size
        in_lanes(kernel, *words, np.zeros((9, size), np.uint32), np.zeros((9, size), np.float32), size=size)


def test_a_division_by_zero_is_left_to_the_threads():
    def kernel(a, b, out):
        i = cuda.grid(1)
        out[i] = a[i] // b[i]

    why = compare(kernel, 1, 8, np.arange(8), np.arange(8) // 2, np.zeros(8, np.int64))
    assert why == "a possible fault: an integer is divided by 0"
