"""`math` and `numba.cuda.libdevice` inside a simulated kernel."""

import math

import numpy as np

from minllm.sim.arrays import fail


class SimulatedMath:
    """The module `math` inside a simulated kernel: a float32 argument gives a float32 result, infinities instead of exceptions."""

    def __getattr__(self, name):
        exact = getattr(math, name, None)
        if exact is None:
            fail(f"math.{name} is not known to the simulator")
        if not callable(exact):
            return exact

        def function(*arguments):
            single = any(isinstance(a, (np.float32, np.float16)) for a in arguments)
            with np.errstate(all="ignore"):
                numpy_function = getattr(np, {"pow": "power", "fabs": "abs"}.get(name, name), None)
                if isinstance(numpy_function, np.ufunc):
                    result = numpy_function(*(np.float64(a) for a in arguments))
                else:
                    result = exact(*(float(a) for a in arguments))
                return np.float32(result) if single and not isinstance(result, (bool, np.bool_)) else result

        return function


class SimulatedLibdevice:
    """`numba.cuda.libdevice`: the float32 functions that kernels use."""

    def __getattr__(self, name):
        plain = name.removeprefix("fast_").removesuffix("f").removesuffix("_rn")
        if plain == "rsqrt":
            return lambda x: np.float32(1 / np.sqrt(np.float64(x)))
        if plain == "fma":
            return lambda a, b, c: np.float32(float(a) * float(b) + float(c))
        if not hasattr(math, plain):
            fail(f"libdevice.{name} is not known to the simulator")
        function = getattr(SimulatedMath(), plain)
        return lambda *arguments: np.float32(function(*arguments))
