"""The Bessel functions of libdevice, J_n and Y_n, as integrals (NIST DLMF 10.9.2, 10.9.7):

    J_n(x) = 1/pi * integral of cos(n t - x sin t) over 0 <= t <= pi
    Y_n(x) = 1/pi * integral of sin(x sin t - n t) over 0 <= t <= pi
             - 1/pi * integral of (e^(n t) + (-1)^n e^(-n t)) e^(-x sinh t) over t >= 0
"""  # fmt: skip

import functools
import math

import numpy as np

quadrature = functools.lru_cache(64)(np.polynomial.legendre.leggauss)  # places and weights, from the eigenvalues of a matrix
POINTS = 400  # points of Gauss-Legendre quadrature per interval, for small x and n
LEAST_EXPONENT = -745.0  # e to this power is about the smallest positive float64


def integral(function, start, stop, points):
    """The integral of a function by Gauss-Legendre quadrature."""
    at, weights = quadrature(points)
    middle, half = (start + stop) / 2, (stop - start) / 2
    return half * float(weights @ function(middle + half * at))


def points(n, x):
    """The number of quadrature points for the oscillating integrand of order n at x."""
    return POINTS + int(min(abs(x) + abs(n), 4000))


def jn(n, x):
    """J_n(x), the Bessel function of the first kind."""
    n, x = int(n), float(x)
    if not math.isfinite(x):
        return math.nan if x != x else 0.0
    return integral(lambda t: np.cos(n * t - x * np.sin(t)), 0, math.pi, points(n, x)) / math.pi


def yn(n, x):
    """Y_n(x), the Bessel function of the second kind; NaN for x < 0, minus infinity at 0."""
    n, x = int(n), float(x)
    if x < 0 or x != x:
        return math.nan
    if x == 0 or math.isinf(x):
        return -math.inf if x == 0 else 0.0
    waves = integral(lambda t: np.sin(x * np.sin(t) - n * t), 0, math.pi, points(n, x))
    stop = math.asinh(-LEAST_EXPONENT / x) + abs(n)

    def decay(t):
        with np.errstate(over="ignore", invalid="ignore"):
            falling = -x * np.sinh(t)
            return np.exp(n * t + falling) + (-1) ** n * np.exp(-n * t + falling)

    pieces = np.linspace(0, stop, 9)
    return (waves - sum(integral(decay, one, other, POINTS) for one, other in zip(pieces, pieces[1:]))) / math.pi
