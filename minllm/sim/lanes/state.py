"""The lanes of a vector: threads of one block, or of several that cannot see each other."""

import functools

import numpy as np

from minllm.sim.arrays import CheckedArray, poisoned
from minllm.sim.cuda_memory import STATIC_BYTES
from minllm.sim.lanes.accesses import ATOMIC, READ, WRITE, Log
from minllm.sim.lanes.arrays import LaneArray, LocalArray, Root, row_major
from minllm.sim.lanes.faults import BlocksMeet, Fault, NotInLanes
from minllm.sim.lanes.masks import VECTOR, Loop, both, joined, split, truth
from minllm.sim.lanes.operations import column, each, low, rows, stored_as, wrapped
from minllm.sim.machine import SHARED_MEMORY_BYTES
from minllm.sim.scalars import dtype_of
from minllm.sim.thread import WARP_SIZE, Dimensions

NOBODY, SEVERAL = -1, -2  # in Root.writer and Root.reader


class Lanes:
    """The state of one vector. mask: the lanes that run the current statement; count: its number of blocks; loop: the innermost loop."""

    def __init__(self, launch, indices, first=0, threads=None):
        size, self.launch = launch.block, launch
        self.threads, self.count = size.x * size.y * size.z, len(indices)
        self.size = self.threads * self.count
        self.mask, self.loop = None, None
        self.blockDim, self.gridDim = size, launch.grid
        self.lane, self.number, self.laneid, self.threadIdx = positions(size, self.count)
        if threads is not None:
            self.size, self.lane, self.number, self.laneid = threads.size, np.arange(threads.size), threads, threads % WARP_SIZE
            self.threadIdx = Dimensions(*(one if type(one) is not VECTOR else one[threads] for one in self.threadIdx))
        self.block_of = None
        if self.count == 1:
            self.blockIdx = indices[0]
        else:
            self.block_of = np.repeat(np.arange(self.count), self.threads)
            self.blockIdx = Dimensions(*(np.array([index[axis] for index in indices])[self.block_of] for axis in range(3)))
        warps_of_block = -(-self.threads // WARP_SIZE)
        self.warps, self.warp_of = self.count * warps_of_block, self.number // WARP_SIZE
        if self.count > 1:
            self.warp_of = self.warp_of + self.block_of * warps_of_block
        # Whether all threads of each warp are here.
        self.whole = threads is None or bool((np.bincount(self.warp_of, minlength=self.warps)[self.warp_of] == WARP_SIZE).all())
        self.shared, self.memory, self.copies, self.groups = {}, None, [], []
        self.kept = (None, None)
        self.dead = False  # lanes that have returned from the kernel
        self.depth = 0  # device functions around the current statement
        # For detectors: block barriers and warp barriers so far, whether the lanes have waited for earlier launches, copies in flight.
        self.watch, self.log, self.first = launch.watch, Log(), first * self.threads
        self.epoch = self.clock = self.flying = 0
        self.waited = False

    # Branches

    def split(self, condition):
        """(mask of the lanes for which a condition is true, mask of the others)."""
        return split(self.mask, condition)

    def begin(self):
        """Begin a loop."""
        self.loop = Loop(self, self.loop)
        return self.loop

    def finish(self, loop):
        """End a loop: its lanes run on together."""
        self.loop, self.mask = loop.around, loop.end()

    def doubt(self, why):
        """Send the launch to the threads, because it may be faulty."""
        raise Fault(why)

    def decline(self, why):
        """Send the launch to the threads, because the lanes have no form of something."""
        raise NotInLanes(why)

    def returns(self):
        """The statement `return`: its lanes leave all loops of the function."""
        if self.loop is not None:
            self.loop.lose(self.mask)
        if self.depth == 0:
            self.dead = True if self.mask is None else joined(self.dead, self.mask)
        self.mask = False

    def call(self, function, arguments, named):
        """Call a device function: its returns end within it."""
        mask, loop = self.mask, self.loop
        self.loop, self.depth = None, self.depth + 1
        result = function(self, *arguments, **named)
        self.mask, self.loop, self.depth = mask, loop, self.depth - 1
        return result

    @property
    def chosen(self):
        """The numbers of the lanes of the mask; None for all."""
        mask = self.mask
        if mask is None:
            return None
        if self.kept[0] is not mask:
            self.kept = mask, np.flatnonzero(mask)
        return self.kept[1]

    def put(self, old, new):
        """A variable after the assignment of `new` in the lanes of the mask."""
        mask = self.mask
        if mask is None or old is None or old is new:
            return new
        if isinstance(new, tuple):
            if not isinstance(old, tuple) or len(old) != len(new):
                raise NotInLanes("a variable that is a tuple in some threads only")
            made = [self.put(*pair) for pair in zip(old, new)]
            return type(new)._make(made) if hasattr(new, "_make") else tuple(made)
        if isinstance(new, LaneArray):
            if not isinstance(old, LaneArray) or old.flat is not new.flat or (old.shape, old.strides) != (new.shape, new.strides):
                raise NotInLanes("a variable that is another array in other threads")
            return new.like(new.shape, new.strides, np.where(mask, new.offset, old.offset))
        if type(new) is not VECTOR and type(old) is type(new) and new == old and new != 0:
            return new
        if kind_of(old) is not kind_of(new):
            raise NotInLanes("a variable that has another type in a divergent branch")
        return np.where(mask, *(low(value) if type(value) is int else value for value in (new, old)))

    # Expressions of which a part is evaluated by some lanes only

    def and_(self, left, right):
        """left and right()."""
        return self.both_of(left, right, True)

    def or_(self, left, right):
        """left or right()."""
        return self.both_of(left, right, False)

    def both_of(self, left, right, wanted):
        left = truth(left)
        if type(left) is not VECTOR:
            return truth(right()) if left is wanted else left
        before = self.mask
        self.mask = both(before, left if wanted else ~left)
        if self.mask is False:
            self.mask = before
            return left
        found = truth(right())
        self.mask = before
        return left & found if wanted else left | found

    def select(self, condition, yes, no):
        """yes() if condition else no()."""
        before = self.mask
        first, second = split(before, condition)
        if second is False or first is False:
            return (yes if second is False else no)()
        self.mask = second
        other = no()
        self.mask = first
        found = yes()
        found = self.put(other, found)
        self.mask = before
        return found

    def pick(self, items, index):
        """An item of a tuple."""
        if type(index) is not VECTOR:
            return items[index]
        outside = (index < 0) | (index >= len(items))
        if (outside if self.mask is None else outside & self.mask).any():
            raise Fault("an item of a tuple that does not exist")
        if not all(isinstance(item, (VECTOR, int, float, np.generic)) for item in items):
            raise NotInLanes("an item of a tuple of arrays that differs between threads")
        return np.stack(np.broadcast_arrays(*items, self.lane)[:-1])[np.where(outside, 0, index), self.lane]

    # Memory

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

    def new_shared(self, key, shape, dtype, alignment=None):
        """A shared array, one per block; shape 0: the dynamic shared memory."""
        if key not in self.shared:
            self.shared[key] = self.make_shared(shape, dtype_of(dtype), alignment)
        return self.shared[key]

    def make_shared(self, shape, dtype, alignment):
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
        return LaneArray(self.memory.root, flat, shape, row_major(shape), offset)

    def shared_base(self):
        """The byte in self.memory at which each lane's block begins."""
        if self.memory is None:
            self.memory = SharedMemory(self)
        return 0 if self.count == 1 else self.block_of * self.memory.row

    def after_syncwarp(self):
        """Called behind a barrier of whole warps."""
        if self.watch is not None:
            self.clock = self.clock + (1 if self.mask is None else self.mask.astype(np.int64))
            self.watch.syncwarp(self)

    def fence(self):
        """A fence; nothing else is needed, because every store is visible at once."""
        if self.watch is not None:
            self.watch.fence(self)

    def each(self, function, *values):
        """function(...) of numbers, for one lane of the mask after the other if one is a vector."""
        if not any(type(value) is VECTOR for value in values):
            return function(*values)
        chosen = self.chosen
        found = column([function(*row) for row in rows(values, chosen)])
        return found if chosen is None else self.spread(found, chosen)

    def spread(self, found, chosen):
        """Vectors of all lanes from those of the lanes `chosen`."""
        if isinstance(found, tuple):
            return tuple(self.spread(one, chosen) for one in found)
        if found is None:
            return None
        made = np.zeros(self.size, found.dtype)
        made[chosen] = found
        return made

    def atomic(self, change, array, index, *values):
        """An atomic of each lane of the mask, in the order of the lanes; returns the old elements."""
        index = index if isinstance(index, tuple) else (index,)
        at = self.address(array, index)
        if array.local:
            raise NotInLanes("an atomic in local memory")
        chosen = self.chosen
        places = at[chosen] if chosen is not None and type(at) is VECTOR else at
        if self.watch is None:
            self.read(array.root, at, array.dtype.itemsize)
        self.written(array.root, places, array.dtype.itemsize, kind=ATOMIC)
        places = at if type(at) is VECTOR else np.full(self.size, at)
        return self.each(functools.partial(change, Elements(array.flat, array.space)), places, *values)

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

    def address(self, array, index):
        """The place of an element in the array's memory: a number or a vector."""
        at = array.offset
        for position, extent, stride in zip(index, array.shape, array.strides):
            if type(position) is VECTOR:
                outside = position.view(np.uint64) >= extent
                if outside.any():
                    if self.mask is None or (outside & self.mask).any():
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
        if chosen is not None:
            value = value[chosen] if type(value) is VECTOR else value
            at = at[chosen] if type(at) is VECTOR else at
        self.written(array.root, at, array.dtype.itemsize, value)
        if type(at) is not VECTOR and type(value) is VECTOR:
            value = value[-1]
        flat[at] = value

    def check_fit(self, value, dtype):
        """Send the launch to the threads if an integer does not fit into an element: a detector follows it."""
        if dtype == np.uint64 or getattr(value, "dtype", dtype).kind not in "iu":
            return
        limits = np.iinfo(dtype)
        changed = (value < limits.min) | (value > limits.max)
        if changed if type(value) is not VECTOR else (changed if self.mask is None else changed & self.mask).any():
            raise Fault("a stored integer wraps")

    def checked(self, cast, value):
        """cast(value) of integers; sends the launch to the threads if a lane's number changes, because it may become an index."""
        found = cast(value)
        changed = found != value
        if changed if type(changed) is not VECTOR else (changed if self.mask is None else changed & self.mask).any():
            raise Fault("an integer wraps in a cast")
        return found

    def store_local(self, flat, at, value, chosen):
        if chosen is None:
            flat[at if type(at) is not VECTOR else (at, self.lane)] = value
        elif type(at) is not VECTOR:
            np.copyto(flat[at], value, where=self.mask, casting="unsafe")
        else:
            flat[at[chosen], chosen] = value[chosen] if type(value) is VECTOR else value

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
        if ((writer != NOBODY) & (writer != own)).any():
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
        if meets.any():
            raise BlocksMeet

    def with_blocks(self, root, at, chosen):
        """(place, block) of the lanes `chosen`; of those of the mask if `at` is a vector with their places alone."""
        if root.writer is None:
            root.writer, root.reader = (np.full(root.flat.size, NOBODY, np.int32) for _ in range(2))
        own = self.block_of if self.chosen is None else self.block_of[self.chosen]
        at = at[chosen] if chosen is not None and type(at) is VECTOR else at
        return (at if type(at) is VECTOR else np.full(own.size, at)), own

    # Barriers

    def syncthreads(self):
        """A barrier of each block: all of its threads that have not returned from the kernel must be here."""
        if self.mask is None:
            if self.watch is not None:
                self.watch.barrier(self)
            return
        # Under a detector of such barriers, threads that have returned count as missing too.
        missing = ~self.mask if self.dead is False or self.watch is not None else ~(self.mask | self.dead)
        if self.count > 1:
            here = self.mask.reshape(self.count, self.threads).any(1)
            missing &= here[self.block_of]
        if missing.any():
            raise Fault("some threads do not reach a barrier")
        if self.watch is not None:
            self.watch.barrier(self)


class Elements(CheckedArray):
    """The elements of memory, for atomics."""

    __slots__ = ()

    def atomic(self, index, change):
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


def kind_of(value):
    """The element type of a variable's value, to compare by `is`."""
    if type(value) is VECTOR:
        return int if value.dtype == np.int64 else value.dtype.type
    return np.bool_ if type(value) is bool else type(value)


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
    return tuple(map(int, shape)) if isinstance(shape, tuple) else (int(shape),)


@functools.lru_cache(64)
def positions(size, count):
    """(lane, number in its block, number in its warp, threadIdx) of the lanes of `count` blocks."""
    threads = size.x * size.y * size.z
    lane = np.arange(threads * count)
    number = lane % threads
    x, y, z = number % size.x, number // size.x % size.y, number // (size.x * size.y)
    for shared in (lane, number, x, y, z):
        shared.flags.writeable = False
    return lane, number, number % WARP_SIZE, Dimensions(x, y if size.y > 1 else 0, z if size.z > 1 else 0)
