"""`math` and `numba.cuda.libdevice` inside a simulated kernel."""

import math

import numpy as np
from numba.cuda import libdevicefuncs

from minllm.sim.arrays import fail
from minllm.sim.scalars import simulated_type

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
            narrow = any(isinstance(a, (np.float32, np.float16)) for a in arguments)
            single = narrow and not any(isinstance(a, float) for a in arguments)  # np.float64 is a float
            with np.errstate(all="ignore"):
                numpy_function = getattr(np, {"pow": "power", "fabs": "abs"}.get(name, name), None)
                if isinstance(numpy_function, np.ufunc):
                    result = numpy_function(*(np.float64(a) for a in arguments))
                else:
                    result = exact(*(float(a) for a in arguments))
                return np.float32(result) if single and not isinstance(result, (bool, np.bool_)) else result

        return function


class SimulatedLibdevice:
    """`numba.cuda.libdevice`: each function takes and returns the types that Numba declares for it."""

    def __getattr__(self, name):
        plain = name.removeprefix("fast_").removesuffix("_rn")
        if f"__nv_{name}" not in libdevicefuncs.functions:
            fail(f"libdevice.{name} is not known to the simulator")
        result, parameters = libdevicefuncs.functions[f"__nv_{name}"]
        if f"{plain.removesuffix('f')}" in OTHER:
            plain = plain.removesuffix("f")
        elif not hasattr(math, plain):
            plain = plain.removesuffix("f")
        function = OTHER.get(plain) or (hasattr(math, plain) and getattr(SimulatedMath(), plain))
        if not function:
            fail(f"libdevice.{name} is not known to the simulator")
        casts = [simulated_type(parameter.ty) for parameter in parameters]
        result = simulated_type(result)
        return lambda *arguments: result(function(*(cast(argument) for cast, argument in zip(casts, arguments))))
