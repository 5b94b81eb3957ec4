"""GELU, exact and with tanh (Hendrycks and Gimpel 2016, "Gaussian Error Linear Units", section 2)."""

import math

import numpy as np

from minllm.errors import KernelArgumentError

_erf = np.frompyfunc(math.erf, 1, 1)  # NumPy has no erf of its own


def gelu_reference(x, approximate="none"):
    """GELU of every element, in the dtype of `x`, computed in float32 (float64 if `x` is).

    approximate "none": x/2 * (1 + erf(x / sqrt(2))); "tanh": x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x**3))), as GPT-2 has it.
    """
    values = x.astype(np.result_type(x.dtype, np.float32), copy=False)
    if approximate == "tanh":
        with np.errstate(over="ignore"):  # the cube of a huge value is inf, and tanh(inf) is the right 1
            gate = np.tanh(math.sqrt(2 / math.pi) * (values + 0.044715 * (values * values * values)))
    elif approximate == "none":
        gate = _erf(values * math.sqrt(0.5)).astype(values.dtype)
    else:
        raise KernelArgumentError(f'approximate is {approximate!r}; it must be "none" (the exact GELU) or "tanh"')
    return (0.5 * values * (1 + gate)).astype(x.dtype, copy=False)
