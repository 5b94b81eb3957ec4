"""`numba.cuda.fp16` inside a simulated kernel."""

import operator

import numpy as np

from minllm.sim.arrays import fail


class HalfPrecision:
    """`cuda.fp16`: each function rounds its result to float16; comparisons give a bool."""

    def __getattr__(self, name):
        function = HALF.get(name)
        if function is None:
            fail(f"cuda.fp16.{name} is not known to the simulator")

        def call(*arguments):
            with np.errstate(all="ignore"):
                found = function(*(np.float64(argument) for argument in arguments))
            return bool(found) if isinstance(found, (bool, np.bool_)) else np.float16(found)

        return call


HALF = {
    **{f"h{name}": getattr(np, name) for name in ("sin", "cos", "log", "log2", "log10", "exp", "exp2", "sqrt")},
    **{f"h{name}": getattr(np, name) for name in ("floor", "ceil", "trunc", "rint")},
    **{f"h{name}": getattr(operator, name) for name in ("add", "sub", "mul", "neg", "eq", "ne", "gt", "ge", "lt", "le")},
    "hdiv": np.divide,
    "habs": abs,
    "hfma": lambda a, b, c: a * b + c,
    "hexp10": lambda x: 10.0**x,
    "hrcp": lambda x: 1 / x,
    "hrsqrt": lambda x: 1 / np.sqrt(x),
    "hmax": np.fmax,
    "hmin": np.fmin,
}
