"""Words and bytes of arrays: accesses of 4 to 16 bytes at an element, as PTX instructions make them."""

import numpy as np

from minllm.sim.lanes.faults import Fault, NotInLanes
from minllm.sim.lanes.masks import VECTOR, largest, some


def flat_view(array):
    """The one-dimensional view of a C-contiguous array."""
    if not array.contiguous:
        raise NotInLanes("a flat index into an array with gaps")
    return array if array.ndim == 1 else array.reshape(array.size)


def active(lanes, condition):
    """Whether a condition is true in a lane of the mask."""
    if type(condition) is not VECTOR:
        return bool(condition)
    return bool(some(condition if lanes.mask is None else condition & lanes.mask))


def start_of(lanes, array, index, width):
    """The byte in the memory of an array's root at which an aligned access of `width` bytes, a power of two, at element `index` begins."""
    if not array.contiguous or array.local:
        raise NotInLanes("an access of several bytes to an array with gaps, or a local one")
    size = array.itemsize
    last = (array.size * size - width) // size
    if last < 0 or type(index) is not VECTOR or largest(index) > last:
        outside = (index < 0) | (index > last)
        if active(lanes, outside):
            raise Fault("an access of several bytes is out of bounds")
        if type(outside) is VECTOR:
            index = np.where(outside, 0, index)
    start = (array.offset + index) * size
    base = 0 if array.space == "shared" else array.root.flat.__array_interface__["data"][0]
    if active(lanes, (base + start) & (width - 1) != 0):
        raise Fault("an access is not aligned")
    return start


def units(root, dtype):
    """The memory of a root as elements of another type. The remainder of its bytes is left out."""
    if root.flat.dtype == dtype:
        return root.flat
    views = root.__dict__.setdefault("views", {})
    if dtype not in views:
        raw = root.flat.view(np.uint8)
        views[dtype] = raw[: raw.size // dtype.itemsize * dtype.itemsize].view(dtype)
    return views[dtype]


def load_units(lanes, array, index, count, dtype):
    """`count` elements of type `dtype` from element `index` of the array on, aligned to all of their bytes."""
    dtype = np.dtype(dtype)
    if array.local:
        return load_local_units(lanes, array, index, count, dtype)
    start = start_of(lanes, array, index, count * dtype.itemsize)
    flat, first = units(array.root, dtype), start // dtype.itemsize
    places = [first + number for number in range(count)]
    if active(lanes, start & (dtype.itemsize - 1) != 0):
        raise NotInLanes("memory that begins between two words")
    lanes.trace(array, array.offset + index, "read", count * dtype.itemsize // array.itemsize)
    if array.space != "constant":
        for place in places:
            lanes.read(array.root, place, dtype.itemsize)
    found = [flat[place if type(place) is not VECTOR else np.minimum(place, flat.size - 1)] for place in places]
    if dtype.kind in "iu":
        found = [one.astype(np.int64) if type(one) is VECTOR else int(one) for one in found]
    return found


def load_local_units(lanes, array, index, count, dtype):
    """load_units of a local array."""
    if dtype.itemsize != array.itemsize:
        raise NotInLanes("words of a local array of another element size")
    found = [lanes.load(flat_view(array), index + number) for number in range(count)]
    if dtype != array.dtype:
        kept = np.int64 if dtype.kind in "iu" else dtype
        found = [one.astype(array.dtype).view(dtype).astype(kept) if type(one) is VECTOR else one for one in found]
    return found


def store_units(lanes, array, index, values, dtype):
    """Store elements of type `dtype` from element `index` of the array on, aligned to all of their bytes."""
    dtype, count = np.dtype(dtype), len(values)
    start = start_of(lanes, array, index, count * dtype.itemsize)
    if active(lanes, start & (dtype.itemsize - 1) != 0):
        raise NotInLanes("memory that begins between two words")
    lanes.trace(array, array.offset + index, "write", count * dtype.itemsize // array.itemsize)
    chosen, flat, first = lanes.chosen, units(array.root, dtype), start // dtype.itemsize
    if type(first) is not VECTOR:
        first = np.full(lanes.size, first)
    if chosen is not None:
        first = first[chosen]
    for number, value in enumerate(values):
        value = value[chosen] if chosen is not None and type(value) is VECTOR else value
        lanes.written(array.root, first + number, dtype.itemsize, value)
        flat[first + number] = value & 0xFFFFFFFF if dtype.kind in "iu" else value
