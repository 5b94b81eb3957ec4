"""The bytes of arrays of any strides.

A view with gaps is, for example, one layer of a cache that interleaves the layers of each token, or every other element of an array.
"""

import numpy as np
from numpy.lib.array_utils import byte_bounds


def bytes_between(data):
    """A uint8 view from an array's lowest byte to its highest, gaps included."""
    if not data.size:
        return np.empty(0, np.uint8)
    if data.flags.c_contiguous:
        return data.reshape(-1).view(np.uint8)
    low, high = byte_bounds(data)
    lowest = data[tuple(slice(0, 1) if stride >= 0 else slice(-1, None) for stride in data.strides)]
    first = np.lib.stride_tricks.as_strided(lowest, (1,), (data.itemsize,)).view(np.uint8)
    return np.lib.stride_tricks.as_strided(first, (high - low,), (1,))


def offset_of_first(data):
    """Bytes from an array's lowest byte to its first element: 0 without negative strides."""
    return sum((1 - extent) * stride for extent, stride in zip(data.shape, data.strides) if stride < 0) if data.size else 0


def place_of(data, byte):
    """The index of the element that holds a byte; out of bounds for a byte in a gap. byte: offset from the array's lowest byte."""
    index = [0] * data.ndim
    for axis in sorted(range(data.ndim), key=lambda axis: -abs(data.strides[axis])):
        stride = abs(data.strides[axis])
        if stride:
            place = int(byte // stride)
            byte %= stride
            index[axis] = place if data.strides[axis] > 0 else data.shape[axis] - 1 - place
    return tuple(index)


def lies_in_a_row(data, start, count):
    """Whether the `count` bytes from offset `start` on contain no gap."""
    if data.flags.f_contiguous:
        return True
    if list(data.strides) != sorted(data.strides, reverse=True) or data.strides[-1] != data.itemsize:
        return False
    axis = data.ndim - 1
    while axis > 0 and data.strides[axis - 1] == data.strides[axis] * data.shape[axis]:
        axis -= 1  # the axes from this one on have no gaps between them
    place = place_of(data, start)[:axis]
    first = sum(position * stride for position, stride in zip(place, data.strides))
    inside = all(position < extent for position, extent in zip(place, data.shape))
    return inside and start + count <= first + data.strides[axis] * data.shape[axis]
