"""`math` and `numba.cuda.libdevice` inside a simulated kernel."""

import math

import numpy as np
from ml_dtypes import bfloat16
from numba.cuda import libdevicefuncs

from minllm.machine.numba_cuda import types
from minllm.sim.arrays import fail
from minllm.sim.libdevice_table import FLOATS, named
from minllm.sim.scalars import simulated_type

SPECIAL = {math.gamma: FLOATS["tgamma"], math.lgamma: FLOATS["lgamma"]}
OTHER = {"rsqrt": lambda x: 1 / np.sqrt(np.float64(x)), "fma": lambda a, b, c: np.float64(a) * np.float64(b) + np.float64(c)}


class SimulatedMath:
    """The module `math` inside a simulated kernel: a float32 argument gives a float32 result, infinities instead of exceptions."""

    def __getattr__(self, name):
        exact = getattr(math, name, None)
        if exact is None:
            fail(f"math.{name} is not known to the simulator")
        if not callable(exact):
            return np.float64(exact)

        def function(*arguments):
            if type(arguments[0]) is bfloat16:  # by Numba's overloads of numba.cuda.bf16, in float32
                return bfloat16(function(np.float32(arguments[0])))
            narrow = any(isinstance(a, (np.float32, np.float16)) for a in arguments)
            single = narrow and not any(isinstance(a, float) for a in arguments)  # np.float64 is a float
            with np.errstate(all="ignore"):
                numpy_function = getattr(np, {"pow": "power", "fabs": "abs"}.get(name, name), None)
                if name == "ldexp":
                    result = np.ldexp(np.float64(arguments[0]), int(arguments[1]))
                elif name == "frexp":
                    fraction, exponent = exact(float(arguments[0]))
                    return (np.float32(fraction) if single else np.float64(fraction)), exponent
                elif isinstance(numpy_function, np.ufunc):
                    result = numpy_function(*(np.float64(a) for a in arguments))
                else:
                    result = without_exceptions(exact, arguments)
                return np.float32(result) if single and not isinstance(result, (bool, np.bool_)) else result

        return function


def without_exceptions(function, arguments):
    """A function of `math`, with a GPU's results where Python raises: NaN outside its domain, infinity if it overflows."""
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
        function = declared and (named(plain) or named(name) or math_function(plain) or math_function(plain.removesuffix("f")))
        if not function:
            fail(f"libdevice.{name} is not known to the simulator")
        casts = [simulated_type(parameter.ty) for parameter in declared[1] if not parameter.is_ptr]
        results = [simulated_type(parameter.ty) for parameter in declared[1] if parameter.is_ptr]  # which Numba returns in a tuple
        if declared[0] != types.void:
            results.insert(0, simulated_type(declared[0]))

        def call(*arguments):
            operands = [cast(argument) for cast, argument in zip(casts, arguments)]
            with np.errstate(all="ignore"):
                found = function(*(np.float64(one) if isinstance(one, np.floating) else one for one in operands))
                return results[0](found) if len(results) == 1 else tuple(cast(one) for cast, one in zip(results, found))

        return call


def math_function(name):
    """A function of OTHER or of the simulated `math`, None if neither has it."""
    return OTHER.get(name) or (getattr(SimulatedMath(), name) if hasattr(math, name) else None)
