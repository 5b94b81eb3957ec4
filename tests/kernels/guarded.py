"""What the tests of the small kernels share: outputs between guard bands, and errors measured against a float64 oracle.

A guarded output lies in the middle of a bigger array that is NaN all over. After the kernel the bands must be untouched, bit by bit,
and the output must hold numbers: an element that was not written is still NaN, and no bound accepts a NaN.
"""

import math

import ml_dtypes
import numpy as np

from minllm.catalogue.noise import Noise

FLOAT32, FLOAT16, BFLOAT16 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
DTYPES = (FLOAT32, FLOAT16, BFLOAT16)
GUARD_BYTES = 128  # a multiple of every alignment that a launcher asks for

# Half the distance between neighbours, relative, and below the smallest normal number absolute: what one rounding may cost.
HALF_STEP = {FLOAT32: 2.0**-24, FLOAT16: 2.0**-11, BFLOAT16: 2.0**-8}
SMALLEST_STEP = {FLOAT32: 2.0**-126, FLOAT16: 2.0**-25, BFLOAT16: 2.0**-126}  # float32 results below the normal range may be flushed to 0
SLACK = 3e-6  # relative to the largest result: float32 arithmetic with the GPU's approximate 2**x and 1/x, before rounding


class Guarded:
    """An array on the device under test, with rows of NaN, or of bytes 0xA5, before and behind it along the first axis."""

    def __init__(self, device, contents):
        """contents: the array's initial values on the host, NaN to be told from what a kernel writes."""
        row_bytes = math.prod(contents.shape[1:]) * contents.dtype.itemsize
        self.rows = GUARD_BYTES // math.gcd(row_bytes, GUARD_BYTES)
        band = Noise.unwritten((self.rows, *contents.shape[1:]), contents.dtype)
        self.device, self.before = device, np.concatenate([band, contents, band])
        self.whole = device.array(self.before.copy())
        self.array = self.whole[self.rows : self.rows + contents.shape[0]]

    def result(self):
        """The array's contents on the host, once the bands around it were found untouched."""
        after = self.device.host(self.whole)
        for band in (slice(None, self.rows), slice(-self.rows, None)):
            np.testing.assert_array_equal(bits(after[band]), bits(self.before[band]), err_msg="the kernel wrote outside its output")
        return after[self.rows : -self.rows]


def poisoned(device, shape, dtype):
    """A guarded output that nobody has written yet: NaN."""
    return Guarded(device, np.full(shape, np.nan, dtype))


def bits(array):
    """The bytes of an array: equality of bits, which tells one NaN from another."""
    return np.ascontiguousarray(array).view(np.uint8)


def random(shape, dtype, seed, magnitude=1.0):
    """Normal numbers of a standard deviation `magnitude`, rounded to `dtype`."""
    return (np.random.default_rng(seed).standard_normal(shape) * magnitude).astype(dtype)


def assert_close(actual, oracle, dtype, slack=SLACK):
    """`actual` is the float64 `oracle` to within one rounding to `dtype` and `slack` of the largest result."""
    dtype, actual = np.dtype(dtype), np.asarray(actual)
    assert actual.dtype == dtype and actual.shape == oracle.shape
    magnitude = np.abs(oracle).max(initial=0, where=np.isfinite(oracle))
    bound = (1 + 1e-6) * HALF_STEP[dtype] * np.abs(oracle) + SMALLEST_STEP[dtype] + slack * magnitude
    with np.errstate(invalid="ignore"):  # equal infinities
        error = np.abs(actual.astype(np.float64) - oracle)
    wrong = ~((error <= bound) | (actual == oracle))
    assert not wrong.any(), f"{wrong.sum()} of {wrong.size} wrong, first at {tuple(np.argwhere(wrong)[0])}: error {error[wrong][0]:.3g}"
