"""The Numba types of a kernel's arguments."""

import functools

import ml_dtypes
import numpy as np

from minllm.errors import KernelArgumentError
from minllm.machine.numba_cuda import from_dtype, types
from minllm.runtime.array import DeviceArray

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def argument_type(value):
    """The Numba type of a kernel's argument: ints are int32, floats float32. Raises KernelArgumentError.

    None has the type none, so `if bias is not None:` in a kernel is decided at compile time, and the other branch is not compiled.
    """
    if type(value) is DeviceArray:
        return array_type(value.dtype, len(value.shape), value.is_contiguous)
    if isinstance(value, types.Type):
        return value
    if value is None:
        return types.none
    if hasattr(value, "numba_type"):  # an object that states its own type: a tensor map
        return value.numba_type
    if isinstance(value, tuple):
        items = tuple(map(argument_type, value))
        return types.NamedTuple(items, type(value)) if hasattr(value, "_fields") else types.Tuple(items)
    if isinstance(value, (bool, np.bool_)):
        raise KernelArgumentError(f"a kernel was given the boolean {value}; pass an int, or make it a constant of the kernel's factory")
    if isinstance(value, np.generic):  # np.float64 is also a Python float
        return from_dtype(value.dtype)
    if isinstance(value, int):
        if not -(2**31) <= value < 2**31:
            raise KernelArgumentError(f"a kernel was given {value}, which does not fit int32; pass np.int64({value})")
        return types.int32
    if isinstance(value, float):
        return types.float32
    dtype, ndim = getattr(value, "dtype", None), getattr(value, "ndim", None)
    if dtype is None or ndim is None:
        given = f"{value!r} of type {type(value).__name__}"
        raise KernelArgumentError(f"a kernel was given {given}; it takes arrays, ints, floats, None, tuples and NamedTuples of these")
    contiguous = value.flags.c_contiguous if isinstance(value, np.ndarray) else getattr(value, "is_contiguous", True)
    return array_type(np.dtype(dtype), ndim, bool(contiguous))


@functools.cache
def array_type(dtype, ndim, contiguous):
    """The Numba type of an array, cached: a dry run of an engine needs the same few types a million times."""
    return types.Array(types.bfloat16 if dtype == BFLOAT16 else from_dtype(dtype), ndim, "C" if contiguous else "A")
