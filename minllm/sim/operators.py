"""Operators whose results on a GPU Python does not give: division by 0, shifts beyond the width, powers, // and % of floats.

Type inference puts these functions in the place of the operators. Under detectors a division by 0 and a shift beyond the width are
reported; without them they have the value that a GPU gives.
"""

import numpy as np

from minllm.sim.fused import fma
from minllm.sim.thread import current_thread


def undefined_result(why):
    """Report an operation that no GPU promises a result for."""
    thread = current_thread()
    if thread is not None and thread.block.monitor is not None:
        thread.block.monitor.undefined_result(why)


def divided_by_zero():
    """n // 0 and n % 0 of integers."""
    undefined_result("an integer is divided by 0: a GPU gives 0")
    return 0


def shifted_left(number, count):
    """number << count with a count beyond the width."""
    undefined_result(f"a shift by {count} bits, beyond the width of the integer: a GPU gives 0")
    return 0


def shifted_right(number, count):
    """number >> count with a count beyond the width."""
    undefined_result(f"a shift by {count} bits, beyond the width of the integer: a GPU gives 0, or -1 for a negative number")
    return -1 if number < 0 else 0


def power(base, exponent):
    """base ** exponent with an integer exponent, as Numba computes it: by squaring, in the type of the base.

    Integers modulo 2**64; a negative exponent gives 0 unless the base is 1 or -1.
    """
    if not isinstance(base, np.floating):
        return integer_power(int(base), int(exponent))
    one, left = type(base)(1), abs(int(exponent))
    if left > 0x10000:
        return type(base)(np.power(np.float64(base), np.float64(exponent)))
    result = one
    while left:
        if left & 1:
            result = result * base
        left >>= 1
        base = base * base if left else base
    return one / result if exponent < 0 else result


def power_factors(base, exponent):
    """The two factors of the last multiplication of base ** exponent, for numbers or vectors and an exponent of at least 2."""
    result = None
    while exponent > 1:
        if exponent & 1:
            result = base if result is None else result * base
        exponent >>= 1
        if exponent == 1 and result is None:
            return base, base
        base = base * base
    return result, base


def integer_power(base, exponent):
    """base ** exponent of integers, modulo 2**64 if the exact number is large."""
    if exponent < 0:
        return -(2**63) if base == 0 else base if base == 1 or (base == -1 and exponent % 2) else int(base == -1)
    return base**exponent if exponent <= 64 else pow(base, exponent, 2**64)


def divided_and_remainder(x, y):
    """(x // y, x % y) of two floats of one type, by the steps of Numba's divmod; the remainder of PTX is |x| - floor(|x| / |y|) |y|."""
    magnitude, divisor = abs(x), abs(y)
    remainder = fma(-np.floor(magnitude / divisor), divisor, magnitude)
    remainder = -remainder if x < 0 else remainder
    if y == 0:
        return x / y, remainder
    quotient = (x - remainder) / y
    if remainder:
        if (y < 0) != (remainder < 0):
            remainder, quotient = remainder + y, quotient - type(x)(1)
    else:
        remainder = np.copysign(remainder, y)
    if not quotient:
        return np.copysign(quotient, x / y), remainder
    whole = np.floor(quotient)
    return (whole + type(x)(1) if quotient - whole > 0.5 else whole), remainder


def floor_division(kind):
    """The operator // of a floating-point type."""
    return lambda x, y: divided_and_remainder(kind(x), kind(y))[0]


def modulo(kind):
    """The operator % of a floating-point type."""
    return lambda x, y: divided_and_remainder(kind(x), kind(y))[1]


FLOOR_DIVISION = {32: floor_division(np.float32), 64: floor_division(np.float64)}
MODULO = {32: modulo(np.float32), 64: modulo(np.float64)}
