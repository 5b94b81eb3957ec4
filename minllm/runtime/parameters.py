"""A launch's arguments in the driver's format: one address per parameter.

Every value takes 8 bytes of one buffer, so the table of addresses never changes, and a launch writes only the values. An array is passed
as Numba's (meminfo, parent, size, itemsize, data, shape..., strides...), 64 bits each; they are packed once and cached in the array.
"""

import ctypes
import math
import struct
import threading

import numpy as np

from minllm.errors import KernelArgumentError

VALUE_BYTES = 8
LARGEST_COUNT = 4064 // VALUE_BYTES  # the driver's limit is 4 KB per launch (more on some newer GPUs)
NOTHING = bytes(VALUE_BYTES)  # Numba passes None as a pointer that the kernel does not read
INT32, FLOAT32 = struct.Struct("<i4x"), struct.Struct("<f4x")


class ParameterBuffer(threading.local):
    """A thread's buffer for a launch's values; `table` holds their addresses."""

    def __init__(self):
        self.values = (ctypes.c_uint64 * LARGEST_COUNT)()
        start = ctypes.addressof(self.values)
        self.addresses = (ctypes.c_void_p * LARGEST_COUNT)(*range(start, start + LARGEST_COUNT * VALUE_BYTES, VALUE_BYTES))
        self.bytes = memoryview(self.values).cast("B")
        self.table = ctypes.addressof(self.addresses)


buffer = ParameterBuffer()
array_types: dict[tuple, int] = {}  # (dtype, number of axes, whether C-contiguous) -> a small number that identifies the type


def parameter(argument):
    """(key of the argument's type, its packed values). Both are cached in arrays. Raises KernelArgumentError."""
    kept = getattr(argument, "kernel_parameter", None)
    if kept is not None:
        return kept
    if type(argument) is int:
        return int, pack_int(argument)
    if type(argument) is float:
        return float, FLOAT32.pack(argument)
    if argument is None:
        return None, NOTHING
    if isinstance(argument, np.generic):
        return argument.dtype, argument.tobytes().ljust(VALUE_BYTES, b"\0")
    if isinstance(argument, np.ndarray):
        raise KernelArgumentError(f"a launch on the GPU was given a NumPy array, {argument.dtype} {argument.shape}: copy it there first")
    if isinstance(argument, tuple):  # Numba passes the items one by one
        keys, packed = zip(*map(parameter, argument))
        return (type(argument), *keys), b"".join(packed)
    if not getattr(argument, "ndim", 0):
        given = f"{argument!r} of type {type(argument).__name__}"
        raise KernelArgumentError(f"a kernel was given {given}; it takes arrays, ints, floats, None, tuples and NamedTuples of these")
    argument.kernel_parameter = packed = array_parameter(argument)
    return packed


def pack_int(value):
    """An int packed as int32, its type in a kernel. Raises KernelArgumentError if it does not fit."""
    if not -(2**31) <= value < 2**31:
        raise KernelArgumentError(f"a kernel was given {value}, which does not fit int32; pass np.int64({value})")
    return INT32.pack(value)


def array_parameter(array):
    """`parameter` of an array on the GPU."""
    shape = array.shape
    words = (0, 0, math.prod(shape), array.dtype.itemsize, array.pointer, *shape, *array.strides)
    number = array_types.setdefault((array.dtype, len(shape), array.is_contiguous), len(array_types))
    return number, struct.pack(f"<{len(words)}Q", *words)


def write_parameters(packed):
    """Write a launch's values to this thread's buffer; returns the address of the table, for the driver."""
    values = b"".join(packed)
    if len(values) > LARGEST_COUNT * VALUE_BYTES:
        given = len(values) // VALUE_BYTES
        raise KernelArgumentError(f"a launch has {given} parameters (an array takes 5, and 2 an axis); up to {LARGEST_COUNT} fit")
    buffer.bytes[: len(values)] = values
    return buffer.table
