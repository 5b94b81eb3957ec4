"""Numba's scalar types in the simulator, with a GPU's wrap-around and rounding.

They are called as casts: `float32(x)`, `uint32(i)`. Integers are Python ints that wrap at the casts in the source and at those that type
inference adds (minllm.sim.typing); floats are NumPy scalars, so that float32 arithmetic rounds as on the GPU.
"""

import functools

import numpy as np

from minllm.machine.numba_cuda import as_dtype, types
from minllm.sim.bfloat16 import bfloat16

WHOLE = (int, np.integer, np.bool_)


class Cast:
    """A cast that can also be passed as a dtype (for shared and local arrays)."""

    def __init__(self, dtype):
        self.dtype = np.dtype(dtype)


class Carrier:
    """Base class of numbers with data for a detector, such as a wrapped index or a value that is undefined on a GPU."""

    __slots__ = ()

    def stored(self, array):
        """Called when the number has been stored in an array of the kernel."""

    def with_value(self, value):
        """Another number that carries the same."""
        return value


class IntegerType(Cast):
    """The cast to an integer type: integers wrap, and floats are converted as by PTX's cvt.rzi.

    That truncates a float and clamps it to the type's range. For 8 bits it clamps to the range of 16, and the result wraps. NaN becomes the
    number whose highest bit alone is set if the integer has 64 bits, or the float 64 and the integer 32; else 0.
    """

    def __init__(self, dtype):
        super().__init__(dtype)
        self.bits = 8 * self.dtype.itemsize
        limits = np.iinfo(self.dtype)
        self.least, self.greatest = int(limits.min), int(limits.max)
        self.converted = limits if self.bits >= 16 else np.iinfo(np.int16 if self.least else np.uint16)

    def __call__(self, value):
        if type(value) is not int:
            value = int(value) if isinstance(value, WHOLE) else self.truncated(value)
        if self.least <= value <= self.greatest:
            return value
        return (value - self.least & (1 << self.bits) - 1) + self.least

    def truncated(self, value):
        """A float as an integer of at least 16 bits."""
        if value != value:
            return 1 << self.bits - 1 if self.bits == 64 or (self.bits == 32 and isinstance(value, float)) else 0  # np.float64 is a float
        value, least, greatest = float(value), int(self.converted.min), int(self.converted.max)
        return least if value <= least else greatest if value >= greatest else int(value)


integer_type = functools.cache(IntegerType)


@functools.cache
def simulated_type(numba_type):
    """The IntegerType or NumPy float type of a Numba scalar type; other Numba types are returned unchanged."""
    if numba_type == types.bfloat16:
        return type(bfloat16(0))
    if isinstance(numba_type, types.Number):
        dtype = as_dtype(numba_type)
        return integer_type(dtype) if dtype.kind in "iu" else dtype.type
    return bool if numba_type == types.boolean else numba_type


@functools.cache
def dtype_of(dtype):
    """The NumPy dtype of a cast, Numba type or NumPy dtype."""
    if isinstance(dtype, types.Type):
        dtype = simulated_type(dtype)
    return dtype.dtype if isinstance(dtype, Cast) else np.dtype(dtype)
