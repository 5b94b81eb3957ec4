"""a * b + c, rounded once: fma of PTX for every floating-point format, for numbers and for vectors."""

import functools

import numpy as np

from minllm.sim import compiled_fma
from minllm.sim.bfloat16 import bfloat16
from minllm.sim.scalars import Carrier

NARROW = (np.float32, np.float16, bfloat16)


def fma(a, b, c):
    """a * b + c in the widest of the types of its operands: float16, bfloat16, float32 or float64; integers count as float64."""
    kinds = {type(one) for one in (a, b, c)}
    if not all(issubclass(kind, NARROW) for kind in kinds):
        return fma_of(np.float64)(a, b, c)
    return fma_of(kinds.pop() if len(kinds) == 1 else np.float32)(a, b, c)


@functools.cache
def fma_of(kind):
    """The fma of numbers whose result has the type `kind`; an operand may be of a narrower type, or carry something for a detector."""

    def of_others(a, b, c):
        exact = plain(*(kind(float(one)) if isinstance(one, np.floating) else kind(one) for one in (a, b, c)))
        if any(isinstance(one, Carrier) for one in (a, b, c)):
            return (a * b + c).with_value(exact)
        return exact

    plain = compiled_fma.of_numbers(kind, of_others) if kind in compiled_fma.FLOATS else narrow_fma(kind)
    return plain if kind in compiled_fma.FLOATS else of_others


@functools.cache
def vector_fma(kind):
    """The fma of vectors and numbers whose result has the type `kind`."""
    return compiled_fma.vectors() if kind in compiled_fma.FLOATS else narrow_fma(kind)


def narrow_fma(kind):
    """fma of numbers or vectors of a type of 16 bits, `kind`."""

    def fused(a, b, c):
        a, b, c = (np.asarray(one).astype(np.float64) for one in (a, b, c))
        product = a * b  # exact
        total = product + c
        part = total - product
        total = towards_odd(total, (product - (total - part)) + (c - part))
        single = total.astype(np.float32)  # in which ml_dtypes rounds, and which holds two bits more than float16 or bfloat16
        return towards_odd(single, total - single).astype(kind)[()]

    return fused


def towards_odd(rounded, error):
    """Rounded numbers, where they are inexact and their last bit is 0 the neighbour on the other side of the exact one: rounding to odd.

    Such a number rounds to a narrower format as the exact one does. Source: Boldo and Melquiond, "Emulation of FMA and Correctly Rounded
    Sums: Proved Algorithms Using Rounding to Odd", 2008.
    """
    bits = np.atleast_1d(rounded).view(f"i{rounded.dtype.itemsize}")
    error = np.atleast_1d(error)
    moved = np.isfinite(error) & (error != 0) & (bits & 1 == 0)
    away = (np.atleast_1d(rounded) == 0) | ((error > 0) == (np.atleast_1d(rounded) > 0))
    return (bits + np.where(moved, np.where(away, 1, -1), 0).astype(bits.dtype)).view(rounded.dtype).reshape(rounded.shape)


def negated(factors):
    """The factors of the negative of a product."""
    return -factors[0], factors[1]
