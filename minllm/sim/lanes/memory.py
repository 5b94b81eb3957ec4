"""Arrays of the lanes: allocation, loads, stores and atomics, and which blocks touch what."""

import functools

import numpy as np

from minllm.sim.arrays import CheckedArray, poisoned
from minllm.sim.cuda_memory import STATIC_BYTES
from minllm.sim.lanes.accesses import ATOMIC, READ, WRITE
from minllm.sim.lanes.arrays import LaneArray, LocalArray, Root, row_major
from minllm.sim.lanes.faults import BlocksMeet, Fault, NotInLanes
from minllm.sim.lanes.masks import VECTOR, largest, some
from minllm.sim.lanes.operations import each, stored_as, wrapped
from minllm.sim.machine import SHARED_MEMORY_BYTES
from minllm.sim.scalars import dtype_of

limits_of = functools.cache(lambda dtype: (np.iinfo(dtype).min, np.iinfo(dtype).max))
NOBODY, SEVERAL = -1, -2  # in Root.writer and Root.reader


class Memory:
    """What lanes do with arrays: a base class of state.Lanes, which has the masks."""

    def part(self, array, *index):
        """A part of an array: index has fewer positions than dimensions, or slices."""
        index = index + (slice(None),) * (array.ndim - len(index))
        numbers = tuple(one for one in index if not isinstance(one, slice))
        shape, strides, offset = [], [], array.offset
        for position, extent, stride in zip(index, array.shape, array.strides):
            if isinstance(position, slice):
                first, last = position.start, position.stop
                first, last = 0 if first is None else first, extent if last is None else last
                if VECTOR in (type(first), type(last)) or not 0 <= first <= last <= extent:
                    raise NotInLanes("a slice whose bounds differ between threads, or lie outside of the array")
                shape, strides, offset = [*shape, last - first], [*strides, stride], offset + first * stride
        one = array.like(tuple(e for e, p in zip(array.shape, index) if not isinstance(p, slice)),
                         tuple(s for s, p in zip(array.strides, index) if not isinstance(p, slice)), offset)  # fmt: skip
        return array.like(tuple(shape), tuple(strides), self.address(one, numbers))

    def new_shared(self, key, shape, dtype, alignment=None, name=""):
        """A shared array, one per block; shape 0: the dynamic shared memory."""
        if key not in self.shared:
            made = self.shared[key] = self.make_shared(shape, dtype_of(dtype), alignment, name)
            if self.tracer is not None:
                start = self.own_address(made.offset * made.itemsize)
                start = int(start if type(start) is not VECTOR else start[0])
                self.traced.shared_names.append((start, start + made.nbytes, name))
        return self.shared[key]

    def own_address(self, place):
        """The shared address in its block of a byte in the memory of all blocks."""
        return place if self.count == 1 else place - self.shared_base()

    def make_shared(self, shape, dtype, alignment, name):
        """A new shared array of every block of the vector."""
        shape = extents(shape)
        if self.memory is None:
            self.memory = SharedMemory(self)
        if shape == (0,):
            start, shape = 0, (self.launch.shared_bytes // dtype.itemsize,)
        else:
            start = self.memory.take(row_major((1, *shape))[0] * dtype.itemsize, max(alignment or dtype.itemsize, 16))
        flat, row = self.memory.bytes.view(dtype), self.memory.row
        offset = start // dtype.itemsize
        if self.count > 1:
            offset = offset + self.block_of * (row // dtype.itemsize)
        return LaneArray(self.memory.root, flat, shape, row_major(shape), offset, name)

    def shared_base(self):
        """The byte in self.memory at which each lane's block begins."""
        if self.memory is None:
            self.memory = SharedMemory(self)
        return 0 if self.count == 1 else self.block_of * self.memory.row

    def new_local(self, shape, dtype, alignment=None):
        """A local array of each lane."""
        shape = extents(shape)
        count = row_major((1, *shape))[0]
        if self.launch.form.by_threads:  # a thread's own array is in one piece
            flat = poisoned((self.size, count), dtype_of(dtype)).T
        else:
            flat = poisoned((count, self.size), dtype_of(dtype))
        root = Root(flat, "", "local")
        if self.watch is not None:
            self.watch.new_local(root)
        return LocalArray(root, flat, shape, row_major(shape), 0)

    # Accesses

    def address(self, array, index):
        """The place of an element in the array's memory: a number or a vector."""
        at = array.offset
        for position, extent, stride in zip(index, array.shape, array.strides):
            if type(position) is VECTOR:
                if largest(position) >= extent:
                    outside = position.view(np.uint64) >= extent
                    if self.mask is None or some(outside & self.mask):
                        raise Fault("an index is out of bounds")
                    position = np.where(outside, 0, position)
            elif not 0 <= position < extent:
                raise Fault("an index is out of bounds")
            at = at + (position if stride == 1 else position * stride)
        return at

    def load(self, array, *index):
        """The elements at an index of all dimensions."""
        at, flat, integer = self.address(array, index), array.flat, array.kind in "iu"
        if array.local:
            if self.watch is not None:
                self.watch.local_read(self, array, at)
            if type(at) is VECTOR:
                found = flat[at, self.lane]
                return as_int64(found) if integer else found
            return as_int64(flat[at]) if integer else flat[at].copy()
        self.trace(array, at, "read")
        self.read(array.root, at, array.dtype.itemsize)
        if type(at) is VECTOR:
            return as_int64(flat[at]) if integer else flat[at]
        return flat.item(at) if integer else flat[at]

    def store(self, array, value, *index):
        """Store to the elements at an index of all dimensions."""
        at, flat, chosen = self.address(array, index), array.flat, self.chosen
        if self.watch is not None and array.kind in "iu" and array.dtype.itemsize >= 4:
            self.check_fit(value, array.dtype)
        value = storable(value, array)
        if array.local:
            if self.watch is not None:
                self.watch.local_written(self, array, at)
            self.store_local(flat, at, value, chosen)
            return
        self.trace(array, at, "write")
        if chosen is not None:
            value = value[chosen] if type(value) is VECTOR else value
            at = at[chosen] if type(at) is VECTOR else at
        self.written(array.root, at, array.dtype.itemsize, value)
        if type(at) is not VECTOR and type(value) is VECTOR:
            value = value[-1]
        flat[at] = value

    def store_local(self, flat, at, value, chosen):
        """Store to elements of a local array in the lanes `chosen`."""
        if chosen is None:
            flat[at if type(at) is not VECTOR else (at, self.lane)] = value
        elif type(at) is not VECTOR:
            np.copyto(flat[at], value, where=self.mask, casting="unsafe")
        else:
            flat[at[chosen], chosen] = value[chosen] if type(value) is VECTOR else value

    def check_fit(self, value, dtype):
        """Send the launch to the threads if an integer does not fit into an element: a detector follows it."""
        if dtype == np.uint64 or getattr(value, "dtype", dtype).kind not in "iu":
            return
        lowest, highest = limits_of(dtype)
        changed = (value < lowest) | (value > highest)
        if changed if type(value) is not VECTOR else some(changed if self.mask is None else changed & self.mask):
            raise Fault("a stored integer wraps")

    def atomic(self, change, array, index, *values):
        """An atomic of each lane of the mask, in the order of the lanes; returns the old elements."""
        index = index if isinstance(index, tuple) else (index,)
        at = self.address(array, index)
        if array.local:
            raise NotInLanes("an atomic in local memory")
        self.trace(array, at, "atomic")
        chosen = self.chosen
        places = at[chosen] if chosen is not None and type(at) is VECTOR else at
        if self.watch is None:
            self.read(array.root, at, array.dtype.itemsize)
        self.written(array.root, places, array.dtype.itemsize, kind=ATOMIC)
        places = at if type(at) is VECTOR else np.full(self.size, at)
        return self.each(functools.partial(change, Elements(array.flat, array.space)), places, *values)

    # Reports of accesses, to a trace, to detectors and to the check that blocks do not touch the same memory

    def trace(self, array, at, kind, count=1):
        """Report an access to `count` elements to a trace. at: for all lanes, the number of the first in the memory of the array's root."""
        if self.tracer is not None and array.space in ("global", "shared"):
            place = at * array.itemsize
            place = self.own_address(place) if array.space == "shared" else place
            self.trace_at(array.space, array.name, place, count * array.itemsize, kind)

    def trace_at(self, space, name, place, width, kind):
        """Report an access to a trace. place: for all lanes, the first byte in the array's memory, or the shared address."""
        if self.tracer is not None:
            place = place[self.chosen] if self.chosen is not None and type(place) is VECTOR else place
            self.tracer.access(self, self.numbers, space, name, place, width, kind)

    def read(self, root, at, size):
        """Called before memory is read. at: for all lanes, the number of an element of `size` bytes from the memory's start."""
        if self.watch is not None:
            if root.space != "constant":
                chosen = self.chosen
                self.watch.access(self, root, at[chosen] if chosen is not None and type(at) is VECTOR else at, size, READ)
        elif root.space == "global":
            root.loaded = True
            if self.count > 1 and root.name in self.launch.stored:
                for element in elements(root, at, size):
                    self.read_by_blocks(root, element)

    def written(self, root, at, size, value=None, kind=WRITE):
        """Called before memory is written. at, value: for the lanes of the mask."""
        if root.saved is None and root.space != "shared":
            if root.space == "constant" or not root.writable:
                raise Fault("a write to read-only memory")
            root.saved = root.flat.copy()
            self.launch.changed.append(root)
        if self.watch is not None:
            self.watch.access(self, root, at, size, kind, value)
        if self.count > 1 and root.space == "global" and (self.watch is None or kind == ATOMIC):
            for element in elements(root, at, size):
                self.written_by_blocks(root, element)

    def read_by_blocks(self, root, at):
        """Note which blocks read elements of memory that the kernel also writes."""
        at, own = self.with_blocks(root, at, self.chosen)
        writer, reader = root.writer[at], root.reader[at]
        if some((writer != NOBODY) & (writer != own)):
            raise BlocksMeet
        root.reader[at] = np.where((reader == NOBODY) | (reader == own), own, SEVERAL)
        others = at[(reader != NOBODY) & (reader != own) | (root.reader[at] != own)]
        root.reader[others] = SEVERAL

    def written_by_blocks(self, root, at):
        """Note which blocks write elements. at: of the lanes of the mask."""
        if root.name not in self.launch.stored:
            self.launch.stored.add(root.name)
            if root.loaded:
                raise BlocksMeet
        at, own = self.with_blocks(root, at, None)
        writer = root.writer[at]
        root.writer[at] = own
        meets = ((writer != NOBODY) & (writer != own)) | (root.writer[at] != own)
        if root.loaded:
            reader = root.reader[at]
            meets |= (reader != NOBODY) & (reader != own)
        if some(meets):
            raise BlocksMeet

    def with_blocks(self, root, at, chosen):
        """(place, block) of the lanes `chosen`; of those of the mask if `at` is a vector with their places alone."""
        if root.writer is None:
            root.writer, root.reader = (np.full(root.flat.size, NOBODY, np.int32) for _ in range(2))
        own = self.block_of if self.chosen is None else self.block_of[self.chosen]
        at = at[chosen] if chosen is not None and type(at) is VECTOR else at
        return (at if type(at) is VECTOR else np.full(own.size, at)), own


class Elements(CheckedArray):
    """The elements of memory, for atomics."""

    __slots__ = ()

    def atomic(self, index, change):
        """Change an element; returns its old value."""
        old = self[index]
        self[index] = change(old)
        return old


class SharedMemory:
    """The shared memory of the blocks of a vector; row: bytes of one block; bytes: of all of them."""

    def __init__(self, lanes):
        dynamic = lanes.launch.shared_bytes
        self.top = -(-dynamic // 1024) * 1024
        self.limit, self.row = self.top + STATIC_BYTES, self.top + STATIC_BYTES
        self.rows = np.empty((lanes.count, self.row), np.uint8)
        self.rows[:, : self.top] = 0xFF
        self.bytes = self.rows.reshape(-1)
        self.root = Root(self.bytes, "", "shared")
        if lanes.watch is not None:
            lanes.watch.new_shared(self.root)
        if self.top > SHARED_MEMORY_BYTES:
            raise Fault("too much shared memory")

    def take(self, count, alignment):
        """Allocate a static array of `count` bytes; returns its address."""
        start = -(-self.top // alignment) * alignment
        self.top = start + count
        if self.top > min(self.limit, SHARED_MEMORY_BYTES):
            raise Fault("too much shared memory")
        self.rows[:, start : self.top] = 0xFF
        return start


def as_int64(found):
    """A new vector of int64 with an integer vector's values, or for uint64 its bits."""
    return found.astype(np.int64)


def elements(root, at, size):
    """The places of the elements of a root's type in an access of `size` bytes, or the element that holds it."""
    own = root.flat.itemsize
    if size == own:
        return (at,)
    return (at * size // own,) if size < own else tuple(at * (size // own) + number for number in range(size // own))


def storable(value, array):
    """A value as NumPy stores it in an array's elements, with the result that the threads' arrays give."""
    kind, given = array.kind, value.dtype.kind if isinstance(value, (VECTOR, np.generic)) else "i" if type(value) is int else "b"
    if kind in "iu":
        if given in "fV":
            return each(functools.partial(stored_as, array.dtype), value)
        return wrapped(value, array.dtype.itemsize, kind == "i") if type(value) is int else value
    if kind == "b":
        return value != 0
    if kind == "V" and given == "u" and (value >= 1 << 63).any():
        raise Fault("an integer is too large for a bfloat16")
    return value.astype(np.float64) if given in "iu" and type(value) is VECTOR else value


def extents(shape):
    """A shape as a tuple of ints."""
    return tuple(map(int, shape)) if isinstance(shape, tuple) else (int(shape),)
