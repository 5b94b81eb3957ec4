"""`math` and `numba.cuda.libdevice` inside a simulated kernel, where NumPy's warnings are off (machine.py)."""

import math

import numpy as np
from numba.cuda import libdevicefuncs

from minllm.machine.numba_cuda import types
from minllm.sim.arrays import fail
from minllm.sim.bfloat16 import bfloat16
from minllm.sim.fused import fma
from minllm.sim.libdevice_table import FLOATS, named
from minllm.sim.scalars import simulated_type

SPECIAL = {math.gamma: FLOATS["tgamma"], math.lgamma: FLOATS["lgamma"]}
OTHER = {"rsqrt": lambda x: 1 / np.sqrt(np.float64(x))}
FUSED = ("fma", "fmaf")


class SimulatedMath:
    """The module `math` inside a simulated kernel: float32 arguments give float32 results, with infinities instead of exceptions."""

    def __getattr__(self, name):
        exact = getattr(math, name, None)
        if exact is None:
            fail(f"math.{name} is not known to the simulator")
        found = simulated_function(name, exact) if callable(exact) else np.float64(exact)
        setattr(self, name, found)
        return found


def simulated_function(name, exact):
    """The twin of a function of `math`."""
    numpy_function = getattr(np, {"pow": "power", "fabs": "abs"}.get(name, name), None)
    if not isinstance(numpy_function, np.ufunc) or name in ("ldexp", "frexp", "modf", "remainder"):  # np.remainder is Python's %
        numpy_function = None

    def function(*arguments):
        if numpy_function is not None and len(arguments) == 1 and type(arguments[0]) is np.float32:  # the common case, and the quick one
            result = numpy_function(np.float64(arguments[0]))
            return result if type(result) is np.bool_ else np.float32(result)
        if type(arguments[0]) is bfloat16:  # computed in float32, as by Numba's overloads of numba.cuda.bf16
            return bfloat16(function(np.float32(arguments[0])))
        narrow = any(isinstance(a, (np.float32, np.float16)) for a in arguments)
        single = narrow and not any(isinstance(a, float) for a in arguments)  # np.float64 is a float
        if name == "ldexp":
            result = np.ldexp(np.float64(arguments[0]), int(arguments[1]))
        elif name == "frexp":
            fraction, exponent = exact(float(arguments[0]))
            return (np.float32(fraction) if single else np.float64(fraction)), exponent
        elif name == "modf":
            return tuple(map(np.float32 if single else np.float64, np.modf(float(arguments[0]))))
        elif numpy_function is not None:
            result = numpy_function(*map(np.float64, arguments))
        else:
            result = without_exceptions(exact, arguments)
        return np.float32(result) if single and not isinstance(result, (bool, np.bool_)) else result

    function.__name__ = name
    return function


def without_exceptions(function, arguments):
    """Call a function of `math`, with a GPU's results where Python raises: NaN outside its domain, infinity on overflow."""
    try:
        return SPECIAL.get(function, function)(*map(float, arguments))
    except ValueError:
        return math.nan
    except OverflowError:
        return math.inf


class SimulatedLibdevice:
    """`numba.cuda.libdevice`: each function takes and returns the types that Numba declares for it."""

    def __getattr__(self, name):
        declared = libdevicefuncs.functions.get(f"__nv_{name}")
        plain = name.removeprefix("fast_").removesuffix("_rn")
        if declared and plain in FUSED:
            kind = simulated_type(declared[0])
            return lambda a, b, c: fma(kind(a), kind(b), kind(c))
        function = declared and (named(plain) or named(name) or math_function(plain) or math_function(plain.removesuffix("f")))
        if not function:
            fail(f"libdevice.{name} is not known to the simulator")
        casts = [simulated_type(parameter.ty) for parameter in declared[1] if not parameter.is_ptr]
        results = [simulated_type(parameter.ty) for parameter in declared[1] if parameter.is_ptr]  # Numba returns these in a tuple
        if declared[0] != types.void:
            results.insert(0, simulated_type(declared[0]))

        def call(*arguments):
            operands = [cast(argument) for cast, argument in zip(casts, arguments)]
            found = function(*(np.float64(one) if isinstance(one, np.floating) else one for one in operands))
            return results[0](found) if len(results) == 1 else tuple(cast(one) for cast, one in zip(results, found))

        setattr(self, name, call)
        return call


def math_function(name):
    """The function of this name in OTHER or in the simulated `math`; None if neither has it."""
    return OTHER.get(name) or (getattr(SimulatedMath(), name) if hasattr(math, name) else None)
