"""a * b + c, rounded once: fma of PTX for every floating-point format."""

import math
import struct

import numpy as np

from minllm.sim.bfloat16 import bfloat16
from minllm.sim.rounding import with_rounding

EXACT = with_rounding("fma", "rn", np.float64)
NARROW = (np.float32, np.float16, bfloat16)


def fma(a, b, c):
    """a * b + c in the widest of the types of its operands: float16, bfloat16, float32 or float64; integers count as float64."""
    kinds = {type(one) for one in (a, b, c)}
    if not all(issubclass(kind, NARROW) for kind in kinds):
        return EXACT(np.float64(a), np.float64(b), np.float64(c))
    kind = kinds.pop() if len(kinds) == 1 else np.float32
    return kind(rounded_to_odd(float(a) * float(b), float(c)))


def rounded_to_odd(product, addend):
    """The sum of two Python floats, rounded to the neighbour whose last bit is 1 if it is inexact.

    Such a sum rounds to a narrower format as the exact sum does. Source: Boldo and Melquiond, "Emulation of FMA and Correctly Rounded
    Sums: Proved Algorithms Using Rounding to Odd", 2008.
    """
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    if error == 0 or error != error or struct.pack("<d", total)[0] & 1:
        return total
    return math.nextafter(total, math.copysign(math.inf, error))
