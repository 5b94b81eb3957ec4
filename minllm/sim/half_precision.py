"""`numba.cuda.fp16` and `numba.cuda.bf16` inside a simulated kernel."""

import operator
from types import FunctionType, ModuleType

import numpy as np

from minllm.sim.arrays import fail
from minllm.sim.bfloat16 import bfloat16
from minllm.sim.rounding import with_rounding
from minllm.sim.scalars import IntegerType

# C++ names of types that numba.cuda.bf16 uses in names of functions, besides NumPy's names.
C_TYPES = {
    "float": np.float32, "double": np.float64, "char": np.int8, "uchar": np.uint8, "short": np.int16, "ushort": np.uint16, "int": np.int32,
    "uint": np.uint32, "ll": np.int64, "ull": np.uint64,
}  # fmt: skip
NAMED_TYPES = C_TYPES | {np.dtype(kind).name: kind for kind in C_TYPES.values()}
TOWARDS = {"rn": np.rint, "rd": np.floor, "ru": np.ceil, "rz": np.trunc}


def saturate(value):
    """A number clamped to the range from 0 to 1; NaN becomes 0."""
    return np.float64(0) if value != value else np.clip(value, 0.0, 1.0)


def with_nan(choose):
    """A maximum or minimum that is NaN if one operand is."""
    return lambda a, b: a + b if a != a or b != b else choose(a, b)


def unordered(compare):
    """A comparison that is true if one operand is NaN."""
    return lambda a, b: a != a or b != b or compare(a, b)


ARITHMETIC = {
    **{f"h{name}": getattr(np, name) for name in ("sin", "cos", "tanh", "log", "log2", "log10", "exp", "exp2", "sqrt")},
    **{f"h{name}": getattr(np, name) for name in ("floor", "ceil", "trunc", "rint")},
    **{f"h{name}": getattr(operator, name) for name in ("add", "sub", "mul", "neg")},
    **{f"h{name}_rn": getattr(operator, name) for name in ("add", "sub", "mul")},
    "hdiv": np.divide,
    "habs": abs,
    "hfma": lambda a, b, c: a * b + c,
    "hexp10": lambda x: 10.0**x,
    "hrcp": lambda x: 1 / x,
    "hrsqrt": lambda x: 1 / np.sqrt(x),
    "hmax": np.fmax,
    "hmin": np.fmin,
    "htanh_approx": np.tanh,
    "hadd_sat": lambda a, b: saturate(a + b),
    "hsub_sat": lambda a, b: saturate(a - b),
    "hmul_sat": lambda a, b: saturate(a * b),
    "hfma_sat": lambda a, b, c: saturate(a * b + c),
    "hfma_relu": lambda a, b, c: np.fmax(a * b + c, 0.0),
    "hmax_nan": with_nan(max),
    "hmin_nan": with_nan(min),
}
COMPARISONS = {
    **{f"h{name}": getattr(operator, name) for name in ("eq", "ne", "gt", "ge", "lt", "le")},
    **{f"h{name}u": unordered(getattr(operator, name)) for name in ("eq", "ne", "gt", "ge", "lt", "le")},
    "hisnan": np.isnan,
    "hisinf": lambda x: int(np.isinf(x)) * (1 if x > 0 else -1),
}


class HalfPrecision:
    """`cuda.fp16` or `cuda.bf16`: each function rounds its result to the format; comparisons return a bool."""

    def __init__(self, name, kind):
        self.name, self.kind = name, kind

    def __getattr__(self, name):
        if name == "bfloat16":
            return self.kind
        function = self.numbers(name) or conversion(name, self.kind)
        if function is None:
            fail(f"cuda.{self.name}.{name} is not known to the simulator")
        return function

    def numbers(self, name):
        """The arithmetic function or comparison of this name; None if it is unknown."""
        function = ARITHMETIC.get(name) or COMPARISONS.get(name)
        if function is None:
            return None
        if name == "hisinf":
            return lambda x: int(function(np.float64(x)))
        result = self.kind if name in ARITHMETIC else bool

        def call(*arguments):
            with np.errstate(all="ignore"):
                return result(function(*(np.float64(argument) for argument in arguments)))

        return call


def conversion(name, kind):
    """The conversion of this name, such as bfloat162int_rz, bfloat16_to_int32_rz or bfloat16_as_short; None if it is unknown."""
    stem, _, mode = name.rpartition("_")
    if mode not in TOWARDS:
        stem, mode = name, "rn"
    for separator in ("_to_", "_as_", "2"):
        source, found, target = stem.partition(f"bfloat16{separator}")
        if found and not source and target in NAMED_TYPES:
            return from_half(NAMED_TYPES[target], mode, separator == "_as_")
        source, found, target = stem.partition(f"{separator}bfloat16")
        if found and not target and source in NAMED_TYPES:
            return to_half(kind, mode, NAMED_TYPES[source], separator == "_as_")
    return None


def from_half(target, mode, bits):
    """The conversion of a 16-bit float to another type; bits: reinterpret the bits instead."""
    if bits:
        return lambda x: int(np.array([x]).view(target)[0])
    if issubclass(target, np.floating):
        return target
    limits = np.iinfo(target)

    def convert(x):
        exact = TOWARDS[mode](np.float64(x))
        if not np.isfinite(exact):
            return 0 if exact != exact else limits.max if exact > 0 else limits.min
        return min(max(int(exact), limits.min), limits.max)

    return convert


def to_half(kind, mode, source, bits):
    """The conversion of a number to a 16-bit float; bits: reinterpret the bits instead."""
    if bits:
        return lambda x: np.array([IntegerType(source)(x)], source).view(kind)[0]
    convert = with_rounding("convert", mode, kind)
    cast = source if issubclass(source, np.floating) else IntegerType(source)
    return lambda x: convert(cast(x))


FP16, BF16 = HalfPrecision("fp16", np.float16), HalfPrecision("bf16", bfloat16)
MODULES = {"numba.cuda.fp16": FP16, "numba.cuda.bf16": BF16, "numba.cuda._internal.cuda_fp16": FP16, "numba.cuda._internal.cuda_bf16": BF16}


def half_precision(value):
    """The simulated twin of Numba's module fp16 or bf16, or of a function of one of them; None for any other value."""
    if isinstance(value, ModuleType):
        return MODULES.get(value.__name__)
    module = MODULES.get(value.__module__) if isinstance(value, FunctionType) else None
    return None if module is None else getattr(module, value.__name__.removeprefix("__"))
