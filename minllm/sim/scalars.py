"""Numba's scalar types in the simulator, with a GPU's wrap-around and rounding.

They are called as casts: `float32(x)`, `uint32(i)`. Integers are Python ints that wrap at the casts in the source and at those that type
inference adds (minllm.sim.typing); floats are NumPy scalars, so that float32 arithmetic rounds as on the GPU.
"""

import functools

import ml_dtypes
import numpy as np

from minllm.machine.numba_cuda import as_dtype, types


class Cast:
    """A cast that can also be passed as a dtype (for shared and local arrays)."""

    def __init__(self, dtype):
        self.dtype = np.dtype(dtype)


class Carrier:
    """Base class of numbers with data for a detector, such as a wrapped index or a value that is undefined on a GPU."""

    __slots__ = ()

    def stored(self, array):
        """Called when the number has been stored in an array of the kernel."""


class IntegerType(Cast):
    """The cast to an integer type: integers wrap, floats are truncated."""

    def __init__(self, dtype):
        super().__init__(dtype)
        self.bits = 8 * self.dtype.itemsize
        limits = np.iinfo(self.dtype)
        self.least, self.greatest = int(limits.min), int(limits.max)

    def __call__(self, value):
        if type(value) is not int:
            value = self.truncated(value) if isinstance(value, (float, np.floating)) else int(value)
        if self.least <= value <= self.greatest:
            return value
        return (value - self.least & (1 << self.bits) - 1) + self.least


    def truncated(self, value):
        """A float as an integer, like cvt.rzi: clamped to the range of 32 or 64 bits; NaN becomes 0."""
        if value != value:
            return 0
        least, greatest = (self.least, self.greatest) if self.bits >= 32 else (-(2**31), 2**31 - 1)
        return least if value <= least else greatest if value >= greatest else int(value)


@functools.cache
def simulated_type(numba_type):
    """The IntegerType or NumPy float type of a Numba scalar type; other Numba types are returned unchanged."""
    if numba_type == types.bfloat16:
        return ml_dtypes.bfloat16
    if isinstance(numba_type, types.Number):
        dtype = as_dtype(numba_type)
        return IntegerType(dtype) if dtype.kind in "iu" else dtype.type
    return bool if numba_type == types.boolean else numba_type


@functools.cache
def dtype_of(dtype):
    """The NumPy dtype of a cast, Numba type or NumPy dtype."""
    if isinstance(dtype, types.Type):
        dtype = simulated_type(dtype)
    return dtype.dtype if isinstance(dtype, Cast) else np.dtype(dtype)
