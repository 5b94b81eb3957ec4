"""The bytes of arrays that may have gaps.

A view with gaps is, for example, one layer of a cache in which each token's layers are adjacent.
"""

import numpy as np

from minllm.errors import SimulationError


def bytes_between(data):
    """A uint8 view from an array's first element to its last, gaps included."""
    if not data.size:
        return np.empty(0, np.uint8)
    if data.flags.c_contiguous:
        return data.reshape(-1).view(np.uint8)
    strides = list(data.strides)
    if strides != sorted(strides, reverse=True) or strides[-1] != data.itemsize:
        raise SimulationError(f"a kernel takes arrays whose last axis has no gaps; given one of shape {data.shape} and strides {strides}")
    elements = 1 + sum((extent - 1) * stride for extent, stride in zip(data.shape, data.strides)) // data.itemsize
    return np.lib.stride_tricks.as_strided(data, (elements,), (data.itemsize,)).view(np.uint8)


def place_of(data, byte):
    """The index of the element that holds a byte, counted from the first; out of bounds for a byte in a gap."""
    index = []
    for stride in data.strides:
        index.append(int(byte // stride))
        byte %= stride
    return tuple(index)


def lies_in_a_row(data, start, count):
    """Whether `count` bytes from `start` on contain no gap."""
    axis = data.ndim - 1
    while axis > 0 and data.strides[axis - 1] == data.strides[axis] * data.shape[axis]:
        axis -= 1  # the axes from this one on have no gaps between them
    place = place_of(data, start)[:axis]
    first = sum(position * stride for position, stride in zip(place, data.strides))
    inside = all(position < extent for position, extent in zip(place, data.shape))
    return inside and start + count <= first + data.strides[axis] * data.shape[axis]
