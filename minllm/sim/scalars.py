"""Numba's scalar types as the simulator calls them: `float32(x)`, `uint32(i)`, with a GPU's wrap-around and rounding.

Integers are Python ints, wrapped at every explicit cast; floats are NumPy scalars, so that float32 arithmetic rounds as on the GPU.
"""

import functools

import ml_dtypes
import numpy as np
from numba.cuda import types
from numba.cuda.np.numpy_support import as_dtype


class ScalarType:
    """Callable like a cast, and accepted wherever a dtype is (shared and local arrays)."""

    def __init__(self, dtype):
        self.dtype = np.dtype(dtype)
        self.bits = 8 * self.dtype.itemsize
        self.kind = self.dtype.kind

    def __call__(self, value):
        if self.kind in "iu":
            wrapped = int(value) & (1 << self.bits) - 1
            return wrapped - (1 << self.bits) if self.kind == "i" and wrapped >> self.bits - 1 else wrapped
        return self.dtype.type(value)


@functools.cache
def simulated_type(numba_type):
    """The ScalarType of a Numba scalar type; other Numba types stay what they are."""
    if numba_type == types.bfloat16:
        return ScalarType(ml_dtypes.bfloat16)
    if isinstance(numba_type, types.Number):
        return ScalarType(as_dtype(numba_type))
    return numba_type


def dtype_of(dtype):
    """The NumPy dtype of a ScalarType, Numba type or NumPy dtype."""
    if isinstance(dtype, types.Type):
        dtype = simulated_type(dtype)
    return dtype.dtype if isinstance(dtype, ScalarType) else np.dtype(dtype)
