"""Round exact results to a floating-point format: to nearest (rn), down (rd), up (ru) or towards zero (rz).

NumPy rounds to nearest only. Here an exact result is a Fraction, which is compared with neighbouring numbers of the format.
"""

import math
from fractions import Fraction

import numpy as np

ROOT_BITS = 2 * 80  # bits of a square root beyond the binary point


def rounded(exact, mode, dtype):
    """A Fraction rounded to a dtype of NumPy or ml_dtypes, by the mode "rn", "rd", "ru" or "rz"."""
    with np.errstate(all="ignore"):
        nearest = dtype(as_float(exact))
        if mode == "rn":
            return nearest
        if mode == "rz":
            mode = "rd" if exact > 0 else "ru"
        while above(nearest, exact) if mode == "rd" else below(nearest, exact):
            nearest = neighbour(nearest, -1 if mode == "rd" else 1)
        while not beyond(following := neighbour(nearest, 1 if mode == "rd" else -1), exact, mode):
            nearest = following
    return nearest


def as_float(exact):
    """The float64 nearest to a Fraction; infinite if that is too large."""
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def above(number, exact):
    """Whether a number of a format is greater than a Fraction."""
    return number > 0 if math.isinf(number) else Fraction(float(number)) > exact


def below(number, exact):
    """Whether a number of a format is less than a Fraction."""
    return number < 0 if math.isinf(number) else Fraction(float(number)) < exact


def beyond(number, exact, mode):
    """Whether a number is on the side of a Fraction to which the mode does not round."""
    return above(number, exact) if mode == "rd" else below(number, exact)


def neighbour(number, step):
    """The next number of a format, up for step 1 and down for -1."""
    bits = np.array([number])
    whole = bits.view(f"i{bits.itemsize}")
    if number == 0:
        whole[0] = 1
        return bits[0] if step > 0 else -bits[0]
    whole[0] += 1 if (number > 0) == (step > 0) else -1
    return bits[0]


def square_root(number):
    """The square root of a Fraction to far more bits than any format has; a rational root is exact."""
    scaled = number.numerator * number.denominator << 2 * ROOT_BITS
    root = math.isqrt(scaled)
    half_a_bit = Fraction(0 if root * root == scaled else 1, 2)
    return (root + half_a_bit) / (number.denominator << ROOT_BITS)


EXACT = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "fma": lambda a, b, c: a * b + c,
    "rcp": lambda a: 1 / a,
    "sqrt": square_root,
    "convert": lambda a: a,
}
IN_FLOATS = {
    **{name: EXACT[name] for name in ("add", "sub", "mul", "div", "fma", "convert")},
    "rcp": lambda a: np.float64(1) / a,
    "sqrt": np.sqrt,
}


def with_rounding(name, mode, dtype):
    """The operation of EXACT with this name, with its result rounded to `dtype` by `mode`."""

    def operate(*operands):
        numbers = [float(one) if isinstance(one, (np.floating, float)) else int(one) for one in map(plain, operands)]
        with np.errstate(all="ignore"):
            in_floats = IN_FLOATS[name](*map(np.float64, numbers))
        if in_floats != in_floats or not all(map(math.isfinite, numbers)) or divides_by_zero(name, numbers):
            return dtype(in_floats)
        exact = EXACT[name](*map(Fraction, numbers))
        return rounded(exact, mode, dtype) if exact else dtype(in_floats)

    return operate


def plain(number):
    """A number of ml_dtypes as the equal float64; other numbers are returned unchanged."""
    return number if isinstance(number, (int, float, np.number)) else np.float64(number)


def divides_by_zero(name, numbers):
    """Whether an operation divides by zero."""
    return name in ("div", "rcp") and numbers[-1] == 0
