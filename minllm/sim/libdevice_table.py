"""libdevice's functions that neither `math` nor a NumPy function of the same name computes, in float64 or in integers.

The result is rounded to the type that Numba declares. Missing are arithmetic that does not round to nearest (_rd, _ru, _rz), remquo and the
Bessel functions.
"""

import math
import struct
from statistics import NormalDist

import numpy as np


def bits(value, to, kind):
    """The bytes of a number read as another type."""
    return struct.unpack(to, struct.pack(kind, value))[0]


def unsigned(value, width=32):
    """An integer's bits as an unsigned number."""
    return int(value) & (1 << width) - 1


def byte_perm(a, b, selector):
    """Four bytes chosen among the eight of a and b."""
    together = unsigned(b) << 32 | unsigned(a)
    return sum((together >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i for i in range(4))


def normal_inverse(p):
    """The number below which a standard normal variable is with probability p: libdevice's normcdfinv."""
    return NormalDist().inv_cdf(p) if 0 < p < 1 else -math.inf if p == 0 else math.inf if p == 1 else math.nan


def half(value):
    """The bits of a float16."""
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
    "cospi": lambda x: math.cos(math.pi * math.fmod(x, 2)),
    "sinpi": lambda x: math.sin(math.pi * math.fmod(x, 2)),
    "erfcinv": lambda x: -normal_inverse(x / 2) / math.sqrt(2),
    "erfinv": lambda x: normal_inverse((x + 1) / 2) / math.sqrt(2),
    "erfcx": lambda x: math.exp(x * x) * math.erfc(x),
    "exp10": lambda x: np.power(10.0, x),
    "fdividef": lambda a, b: np.float64(a) / b,
    "fdim": lambda a, b: max(a - b, 0.0),
    "fmax": np.fmax,
    "fmin": np.fmin,
    "frsqrt": lambda x: 1 / np.sqrt(x),
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "ilogb": lambda x: math.frexp(x)[1] - 1,
    "logb": lambda x: math.frexp(x)[1] - 1,
    "finite": np.isfinite,
    "isfinited": np.isfinite,
    "isinfd": np.isinf,
    "isnand": np.isnan,
    "signbitd": np.signbit,
    "signbit": np.signbit,
    "nearbyint": np.rint,
    "rint": np.rint,
    "llrint": np.rint,
    "round": lambda x: math.copysign(math.floor(abs(x) + 0.5), x),
    "llround": lambda x: math.copysign(math.floor(abs(x) + 0.5), x),
    "normcdf": lambda x: math.erfc(-x / math.sqrt(2)) / 2,
    "normcdfinv": normal_inverse,
    "powi": lambda x, n: np.power(x, np.float64(n)),
    "saturate": lambda x: 0.0 if x != x else min(max(x, 0.0), 1.0),
    "scalbn": lambda x, n: math.ldexp(x, int(n)),
    "ldexp": lambda x, n: math.ldexp(x, int(n)),
    "tgamma": math.gamma,
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

# Pairs: libdevice returns them through pointers, Numba as a tuple.
TUPLES = {
    "sincos": lambda x: (math.sin(x), math.cos(x)),
    "sincospi": lambda x: (FLOATS["sinpi"](x), FLOATS["cospi"](x)),
}

OPERATIONS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "rcp": lambda a: 1 / a,
    "sqrt": np.sqrt,
}
TO_INTEGER = {"rn": np.rint, "rd": np.floor, "ru": np.ceil, "rz": np.trunc}


def named(name):
    """The function of libdevice's name, in float64 or Python's integers; None for one that is not here."""
    found = INTEGERS.get(name) or FLOATS.get(name) or TUPLES.get(name)
    if found is None and name.endswith("f"):
        found = FLOATS.get(name[:-1]) or TUPLES.get(name[:-1])
    if found is not None:
        return found
    stem, _, mode = name.rpartition("_")
    if mode != "rn" and mode not in TO_INTEGER:
        return None
    if stem[1:] in OPERATIONS and mode == "rn":
        return OPERATIONS[stem[1:]]
    source, _, target = stem.partition("2")
    if target in ("int", "uint", "ll", "ull"):
        return TO_INTEGER[mode]
    if target in ("float", "double") and mode == "rn":
        return (lambda x: unsigned(x, 32 if source == "uint" else 64)) if source in ("uint", "ull") else lambda x: x
    return None
