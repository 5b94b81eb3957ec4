"""The contents of a launch's arrays: gigabytes of random numbers, or none.

A GPU draws less power on zeros and then runs at a higher clock, so every measured array holds normal noise. Drawing billions of
normal numbers would take minutes; instead a few million are drawn once, and every array is a slice of them, repeated if it is longer.
"""

import copy
import functools
import math

import numpy as np

LENGTH = 4_194_301  # a prime near 2**22, so that rows with power-of-two lengths do not repeat
SHORT = 10_007  # enough for launches of odd sizes
STEP = 1_000_003  # offset between the slices of successive arrays; also a prime, so that their beginnings differ


@functools.lru_cache(maxsize=2)
def first_numbers(seed: int, length: int) -> tuple[np.random.Generator, np.ndarray]:
    """(a generator that has drawn these normal numbers, the numbers), which all Noises share and leave as they are."""
    random = np.random.default_rng(seed)
    return random, random.standard_normal(length, dtype=np.float32)


class Noise:
    """Normal noise with mean 0; the same seed and the same calls give the same arrays."""

    def __init__(self, seed: int = 0, length: int = LENGTH):
        drawn, self._normal = first_numbers(seed, length)
        self.random = copy.deepcopy(drawn)  # for other random numbers: choices, permutations
        self._strips: dict[tuple, np.ndarray] = {}  # {(dtype, deviation): the noise as unsigned integers, which NumPy copies fast}
        self._start = 0

    def array(self, shape: tuple[int, ...], dtype, deviation: float = 1.0) -> np.ndarray:
        """A new array of `shape` with this standard deviation, rounded to `dtype`."""
        dtype, count = np.dtype(dtype), math.prod(shape)
        strip = self._strips.get((dtype, deviation))
        if strip is None:
            strip = (np.float32(deviation) * self._normal).astype(dtype).view(f"u{dtype.itemsize}")
            self._strips[dtype, deviation] = strip
        self._start = (self._start + STEP) % len(strip)
        if self._start + count <= len(strip):
            values = strip[self._start : self._start + count].copy()
        else:
            values = np.resize(np.roll(strip, -self._start), count)
        return values.view(dtype).reshape(shape)

    def whole_numbers(self, shape: tuple[int, ...], dtype) -> np.ndarray:
        """Small integers, three quarters of them zeros: sums of a few hundred products are exact in float32, and in 16 bits."""
        return (self.random.integers(-2, 3, shape) * (self.random.random(shape) < 0.25)).astype(dtype)

    @staticmethod
    def unwritten(shape: tuple[int, ...], dtype) -> np.ndarray:
        """A new array for results that nobody has written yet: NaN, or bytes of 0xA5 for integers."""
        return np.full(shape, np.nan, dtype) if np.dtype(dtype).kind in "fV" else np.full(shape, 0xA5, np.uint8).astype(dtype)


class WithoutContents:
    """Noise for a dry run: zeros, for which the system provides no memory until they are written."""

    @functools.cached_property
    def random(self) -> np.random.Generator:
        """For other random numbers, which few launches have."""
        return np.random.default_rng(0)

    def array(self, shape: tuple[int, ...], dtype, deviation: float = 1.0) -> np.ndarray:
        """An array of this shape and dtype."""
        return np.zeros(shape, dtype)

    whole_numbers = unwritten = array
