"""Marks of the bytes in arrays of `cuda.device_array` that have been written, over all launches and copies from the host.

compute-sanitizer's initcheck keeps the same marks for a GPU's memory. They belong to the memory, not to an array: views share them.
A byte counts as unwritten if it has no mark and still holds the 0xFF that fills new memory, so that writes that bypass this module (by
NumPy, to the memory of the array) cause no false alarm.
"""

import weakref

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.lib.stride_tricks import as_strided

from minllm.sim.array_bytes import bytes_between, offset_of_first

memories = {}  # id of the NumPy array that owns the memory -> its DeviceMemory


class DeviceMemory:
    """The marks of one allocation: for each byte from `address` on, whether it has been written."""

    def __init__(self, data):
        self.address = byte_bounds(data)[0]
        self.written = np.ones(bytes_between(data).size, bool)
        of_elements(data, self.written)[...] = ~bytes_of_fields(data.dtype)

    def marks(self, data):
        """The marks of an array in this memory, gaps included."""
        first = byte_bounds(data)[0] - self.address
        return self.written[first : first + bytes_between(data).size]


def watch(data):
    """Fill a new array with 0xFF and count all of its bytes, except padding, as unwritten."""
    if data.size:
        bytes_between(data)[...] = 0xFF
        memories[id(data)] = DeviceMemory(data)
        weakref.finalize(data, memories.pop, id(data), None)
    return data


def memory_of(data):
    """The DeviceMemory that an array lies in; None if it is not watched."""
    while getattr(data, "base", None) is not None:
        data = data.base
    return memories.get(id(data))


def unwritten_bytes(data):
    """For each byte from an array's lowest to its highest, whether it is unwritten; None if the array is unwatched or has no such byte."""
    memory = memory_of(data) if data.size else None
    if memory is None:
        return None
    marks = memory.marks(data)
    unmarked = ~of_elements(data, marks)
    if not unmarked.any():
        return None
    found = np.zeros(marks.size, bool)
    untouched = of_elements(data, bytes_between(data)) == 0xFF
    of_elements(data, found)[...] = unmarked & (untouched | ~unmarked).all(-1, keepdims=True)
    return found


def unwritten_elements(data):
    """For each element of an array, whether it has unwritten bytes; None if unwritten_bytes returns None."""
    found = unwritten_bytes(data)
    return None if found is None else of_elements(data, found).any(-1)


def mark_written(data, which=True):
    """Mark bytes of an array: `which` is broadcast to [*data.shape, itemsize]."""
    memory = memory_of(data) if data.size else None
    if memory is not None:
        of_elements(data, memory.marks(data))[...] |= which


def of_elements(data, lowest):
    """The view [*data.shape, itemsize] of an array `lowest` that has one entry per byte of `data`, from its lowest to its highest."""
    return as_strided(lowest[offset_of_first(data) :], (*data.shape, data.dtype.itemsize), (*data.strides, 1))


def bytes_of_fields(dtype):
    """For each byte of an element, whether it belongs to a field; the others are the padding of a record."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return np.tile(bytes_of_fields(base), int(np.prod(shape)))
    if dtype.names is None:
        return np.ones(dtype.itemsize, bool)
    found = np.zeros(dtype.itemsize, bool)
    for field, offset, *_ in dtype.fields.values():
        found[offset : offset + field.itemsize] |= bytes_of_fields(field)
    return found
