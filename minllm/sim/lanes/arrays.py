"""Arrays as the lanes see them: the memory, and for each lane where its part of it begins.

An index is a number, the same for all lanes, or a vector with one number a lane. Elements are read as vectors (integers as int64, whose
bits are those of the element's type for uint64), or as one number if the index is the same for all lanes.
"""

import math

import numpy as np

from minllm.sim.array_bytes import bytes_between, offset_of_first
from minllm.sim.arrays import CheckedArray
from minllm.sim.lanes.faults import NotInLanes
from minllm.sim.lanes.masks import VECTOR


class Root:
    """Memory that arrays are views of.

    flat: a one-dimensional array. data: the array in global memory. notes: data of detectors. loaded: whether an element was read. saved: a
    copy from before the first store, to undo a launch. range: the first root of those that overlap; shift: bytes from its start. writer,
    reader: for each element, which of several blocks in one vector wrote and read it.
    """

    flying = ()  # under detectors of fibres, the registers of a local array that wgmmas have in flight
    stored = None  # under detectors of fibres, for each chunk of 16 bytes the bulk stores in flight that write it
    marks = None  # under detectors, one per byte that is written (local memory: one per element); None if all are

    def __init__(self, flat, name="", space="global", data=None):
        self.flat, self.name, self.space, self.data = flat, name, space, data
        self.root, self.notes, self.range, self.shift = self, {}, self, 0
        self.saved, self.loaded = None, False
        self.writer = self.reader = None
        self.writable = flat.flags.writeable

    @property
    def size(self):
        """Elements of the array in global memory."""
        return self.data.size

    @property
    def itemsize(self):
        """Bytes per element."""
        return self.flat.itemsize


class LaneArray:
    """An array in global, shared or constant memory. offset: elements before its first; a vector if it differs between lanes.

    name: the argument or variable, "" if unknown.
    """

    __slots__ = ("root", "flat", "shape", "strides", "offset", "name", "dtype", "kind", "space", "varies")
    local = False

    def __init__(self, root, flat, shape, strides, offset, name=""):
        self.root, self.flat, self.shape, self.strides, self.offset, self.name = root, flat, shape, strides, offset, name
        self.dtype, self.kind, self.space = flat.dtype, flat.dtype.kind, root.space
        self.varies = type(offset) is VECTOR

    @property
    def view(self):
        """What two views of one memory have in common if they differ in their offsets alone."""
        return self.shape, self.strides, self.name

    @property
    def ndim(self):
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self):
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self):
        """Bytes per element."""
        return self.dtype.itemsize

    @property
    def nbytes(self):
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize

    @property
    def contiguous(self):
        """Whether the elements lie in C order without gaps."""
        return self.strides == row_major(self.shape)

    @property
    def T(self):
        """The transposed array."""
        return self.like(self.shape[::-1], self.strides[::-1], self.offset)

    def like(self, shape, strides, offset):
        """Another view of the same memory."""
        return type(self)(self.root, self.flat, shape, strides, offset, self.name)

    def reshape(self, *shape):
        """The same memory in another shape."""
        shape = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        if not self.contiguous or any(type(extent) is VECTOR for extent in shape):
            raise NotInLanes("reshape of an array with gaps")
        if -1 in shape:
            shape = tuple(self.size // -math.prod(shape) if extent == -1 else extent for extent in shape)
        if math.prod(shape) != self.size:
            raise NotInLanes("reshape to another size")
        return self.like(shape, row_major(shape), self.offset)


class LocalArray(LaneArray):
    """Arrays of which each lane has its own; flat: [elements, lanes]."""

    __slots__ = ()
    local = True


def row_major(shape):
    """The strides of a C-contiguous array, in elements."""
    strides, count = [], 1
    for extent in reversed(shape):
        strides.append(count)
        count *= extent
    return tuple(reversed(strides))


def of_host(data, name, space="global", roots=None):
    """The LaneArray of a NumPy array. roots: [(first byte, one past the last, Root)] of the launch so far, to which it is added."""
    if data.dtype.names is not None or data.dtype.kind not in "iufbV" or any(stride % data.itemsize for stride in data.strides):
        raise NotInLanes(f"an array of {data.dtype}")
    memory = np.asarray(bytes_between(data))  # not of a subclass, such as that of detectors' outputs
    if memory.size % data.itemsize:
        raise NotInLanes("an array with gaps")
    first = memory.__array_interface__["data"][0]
    spans = ((first, first + memory.size), data.dtype)
    root = next((known for start, stop, known in roots or () if ((start, stop), known.flat.dtype) == spans), None)
    flat = memory.view(data.dtype)
    if root is None:
        root = Root(flat, name, space, data)
        if roots is not None:
            roots.append((first, first + memory.size, root))
    strides = tuple(stride // data.itemsize for stride in data.strides)
    return LaneArray(root, flat, data.shape, strides, offset_of_first(data) // data.itemsize, name)


def overlap(roots):
    """Whether two roots share memory; they then get one range."""
    found, end, first = False, 0, None
    for start, stop, root in sorted(roots, key=lambda one: one[:2]):
        if start < min(end, stop):
            root.range, root.shift, found = first[1].range, start - first[0], True
        else:
            first = start, root
        end = max(end, stop)
    return found


def constant(data, name):
    """The LaneArray of a global array, which is read-only."""
    return of_host(data.data if isinstance(data, CheckedArray) else np.ascontiguousarray(data), name, "constant")
