"""libdevice's functions that neither `math` nor a NumPy function of the same name computes, in float64 or in integers.

The caller rounds the result to the type that Numba declares; functions with a rounding mode in their names round exactly (rounding.py).
"""

import math
import struct
from fractions import Fraction
from functools import partial
from statistics import NormalDist

import numpy as np

from minllm.sim.bessel import jn, yn
from minllm.sim.rounding import EXACT, with_rounding


def bits(value, to, kind):
    """The bytes of a number read as another type; to, kind: format letters of `struct`."""
    return struct.unpack(to, struct.pack(kind, value))[0]


def unsigned(value, width=32):
    """The low `width` bits of an integer as an unsigned number."""
    return int(value) & (1 << width) - 1


def byte_perm(a, b, selector):
    """Four bytes chosen among the eight of a and b."""
    together = unsigned(b) << 32 | unsigned(a)
    return sum((together >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i for i in range(4))


def normal_inverse(p):
    """The p-quantile of the standard normal distribution: libdevice's normcdfinv."""
    return NormalDist().inv_cdf(p) if 0 < p < 1 else -math.inf if p == 0 else math.inf if p == 1 else math.nan


def gamma(x):
    """The gamma function; infinite at 0, NaN at negative integers and minus infinity."""
    if x <= 0 and x == np.floor(x):
        return math.copysign(math.inf, x) if x == 0 else math.nan
    try:
        return math.gamma(x)
    except OverflowError:
        return math.copysign(math.inf, x)


def log_gamma(x):
    """The logarithm of |gamma(x)|; infinite at 0, at negative integers and at minus infinity."""
    try:
        return math.inf if x <= 0 and x == np.floor(x) else math.lgamma(x)
    except OverflowError:
        return math.inf


def erfcx(x):
    """exp(x * x) * erfc(x); for large x as a continued fraction (Abramowitz and Stegun 7.1.14), because exp(x * x) would overflow."""
    if x < 10:
        return np.exp(x * x) * math.erfc(x)
    fraction = x
    for i in range(20, 0, -1):
        fraction = x + i / 2 / fraction
    return 1 / (math.sqrt(math.pi) * fraction)


def logb(x):
    """The binary exponent of x, as a float; -inf for 0, inf for infinities."""
    if x == 0:
        return -math.inf
    return float(math.frexp(x)[1] - 1) if math.isfinite(x) else abs(x)


def ilogb(x):
    """The binary exponent of x, as an integer; INT_MIN for 0 and NaN, INT_MAX for infinities."""
    exponent = logb(x)
    return int(exponent) if math.isfinite(exponent) else 2**31 - 1 if exponent > 0 else -(2**31)


def round_half_away(x):
    """x rounded to an integer, halves away from zero. Adding 0.5 itself would round up the number just below 0.5."""
    return np.trunc(x + np.copysign(np.nextafter(0.5, 0), x))


def remquo(x, y):
    """(the remainder of x / y rounded to nearest, the low bits of that quotient)."""
    if not math.isfinite(x) or y == 0 or y != y:
        return math.nan, 0
    remainder = math.remainder(x, y)
    quotient = 0 if math.isinf(y) else round((Fraction(x) - Fraction(remainder)) / Fraction(y))
    return remainder, (abs(quotient) & 7) * (1 if quotient >= 0 else -1)


def half(value):
    """The bits of a number rounded to float16, as int16."""
    return int(np.float16(value).view(np.int16))


INTEGERS = {
    "abs": abs,
    "llabs": abs,
    "max": max,
    "llmax": max,
    "min": min,
    "llmin": min,
    "umax": lambda a, b: max(unsigned(a), unsigned(b)),
    "umin": lambda a, b: min(unsigned(a), unsigned(b)),
    "ullmax": lambda a, b: max(unsigned(a, 64), unsigned(b, 64)),
    "ullmin": lambda a, b: min(unsigned(a, 64), unsigned(b, 64)),
    "brev": lambda x: int(f"{unsigned(x):032b}"[::-1], 2),
    "brevll": lambda x: int(f"{unsigned(x, 64):064b}"[::-1], 2),
    "clz": lambda x: 32 - unsigned(x).bit_length(),
    "clzll": lambda x: 64 - unsigned(x, 64).bit_length(),
    "ffs": lambda x: (x & -x).bit_length(),
    "ffsll": lambda x: (x & -x).bit_length(),
    "popc": lambda x: unsigned(x).bit_count(),
    "popcll": lambda x: unsigned(x, 64).bit_count(),
    "byte_perm": byte_perm,
    "hadd": lambda a, b: a + b >> 1,
    "rhadd": lambda a, b: a + b + 1 >> 1,
    "uhadd": lambda a, b: unsigned(a) + unsigned(b) >> 1,
    "urhadd": lambda a, b: unsigned(a) + unsigned(b) + 1 >> 1,
    "mul24": lambda a, b: (((a & 0xFFFFFF) ^ 0x800000) - 0x800000) * (((b & 0xFFFFFF) ^ 0x800000) - 0x800000),
    "umul24": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    "mulhi": lambda a, b: a * b >> 32,
    "mul64hi": lambda a, b: a * b >> 64,
    "umulhi": lambda a, b: unsigned(a) * unsigned(b) >> 32,
    "umul64hi": lambda a, b: unsigned(a, 64) * unsigned(b, 64) >> 64,
    "sad": lambda a, b, c: abs(a - b) + c,
    "usad": lambda a, b, c: abs(unsigned(a) - unsigned(b)) + unsigned(c),
}

FLOATS = {
    "cospi": lambda x: np.cos(math.pi * np.fmod(x, 2)),
    "sinpi": lambda x: np.sin(math.pi * np.fmod(x, 2)),
    "erfcinv": lambda x: -normal_inverse(x / 2) / math.sqrt(2),
    "erfinv": lambda x: normal_inverse((x + 1) / 2) / math.sqrt(2),
    "erfcx": erfcx,
    "exp10": lambda x: np.power(10.0, x),
    "fdividef": lambda a, b: np.float64(a) / b,
    "fdim": lambda a, b: max(a - b, 0.0),
    "fmax": np.fmax,
    "fmin": np.fmin,
    "frsqrt": lambda x: 1 / np.sqrt(x),
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "ilogb": ilogb,
    "logb": logb,
    "finite": np.isfinite,
    "isfinited": np.isfinite,
    "isinfd": np.isinf,
    "isnand": np.isnan,
    "signbitd": np.signbit,
    "signbit": np.signbit,
    "nearbyint": np.rint,
    "rint": np.rint,
    "llrint": np.rint,
    "round": round_half_away,
    "llround": round_half_away,
    "normcdf": lambda x: math.erfc(-x / math.sqrt(2)) / 2,
    "normcdfinv": normal_inverse,
    "powi": lambda x, n: np.power(x, np.float64(n)),
    "saturate": lambda x: 0.0 if x != x else min(max(x, 0.0), 1.0),
    "scalbn": lambda x, n: np.ldexp(x, int(n)),
    "ldexp": lambda x, n: np.ldexp(x, int(n)),
    "tgamma": gamma,
    "lgamma": log_gamma,
    **{f"j{n}": partial(jn, n) for n in (0, 1)},
    **{f"y{n}": partial(yn, n) for n in (0, 1)},
    "jn": jn,
    "yn": yn,
    "half2float": lambda x: np.int16(x).view(np.float16),
    "float2half_rn": half,
    "double2hiint": lambda x: struct.unpack("<ii", struct.pack("<d", x))[1],
    "double2loint": lambda x: struct.unpack("<ii", struct.pack("<d", x))[0],
    "hiloint2double": lambda high, low: struct.unpack("<d", struct.pack("<ii", low, high))[0],
    "double_as_longlong": lambda x: bits(x, "<q", "<d"),
    "longlong_as_double": lambda x: bits(x, "<d", "<q"),
    "float_as_int": lambda x: bits(x, "<i", "<f"),
    "int_as_float": lambda x: bits(x, "<f", "<i"),
}

# Functions with two results, which libdevice returns through pointers and Numba as a tuple.
TUPLES = {
    "sincos": lambda x: (np.sin(x), np.cos(x)),
    "sincospi": lambda x: (FLOATS["sinpi"](x), FLOATS["cospi"](x)),
    "frexp": math.frexp,
    "modf": math.modf,
    "remquo": remquo,
}

FORMATS = {"d": np.float64, "f": np.float32, "double": np.float64, "float": np.float32}
MODES = ("rn", "rd", "ru", "rz")
TO_INTEGER = {"rn": np.rint, "rd": np.floor, "ru": np.ceil, "rz": np.trunc}


def named(name):
    """The function for a name of libdevice, in float64 or Python's integers; None if it is not in these tables."""
    found = INTEGERS.get(name) or FLOATS.get(name) or TUPLES.get(name)
    if found is None and name.endswith("f"):
        found = FLOATS.get(name[:-1]) or TUPLES.get(name[:-1])
    if found is not None:
        return found
    return with_mode(*name.rpartition("_")[::2])


def with_mode(stem, mode):
    """The function for a name with a rounding mode, such as dadd_rd, fmaf_rz or int2float_ru; None if there is none."""
    if mode not in MODES:
        return None
    if stem in ("fma", "fmaf"):
        return with_rounding("fma", mode, np.float32 if stem == "fmaf" else np.float64)
    if stem[1:] in EXACT and stem[0] in FORMATS:
        return with_rounding(stem[1:], mode, FORMATS[stem[0]])
    source, _, target = stem.partition("2")
    if target in ("int", "uint", "ll", "ull"):
        return TO_INTEGER[mode]
    if target not in FORMATS:
        return None
    convert = with_rounding("convert", mode, FORMATS[target])
    return (lambda x: convert(unsigned(x, 32 if source == "uint" else 64))) if source in ("uint", "ull") else convert
