"""The lanes of a vector: threads of one block, or of several that cannot see each other."""

import functools

import numpy as np

from minllm.sim.lanes import accesses
from minllm.sim.lanes.arrays import LaneArray
from minllm.sim.lanes.faults import Fault, NotInLanes
from minllm.sim.lanes.masks import VECTOR, Loop, both, joined, some, split, truth
from minllm.sim.lanes.memory import Memory
from minllm.sim.lanes.operations import column, low, rows
from minllm.sim.lanes.trace import Log
from minllm.sim.thread import WARP_SIZE, Dimensions


class Lanes(Memory):
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
            self.blockIdx = Dimensions(*(np.array(axis)[self.block_of] for axis in zip(*indices)))
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
        self.watch, self.log, self.first = launch.watch, accesses.Log(), first * self.threads
        self.serial = self.first + (self.lane if threads is None else self.number)
        self.epoch = self.clock = self.flying = 0
        self.waited = False
        # For a trace: the calls that have led here, the site of the current access or call, the accesses of these lanes.
        self.tracer, self.path, self.site = launch.tracer, None, None
        if self.tracer is not None:
            self.path, self.traced = self.tracer.path, Log(self.size)

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

    def at(self, site, function, *operands):
        """function(...), called at a site of the kernel."""
        self.site = site
        return function(*operands)

    def call_at(self, site, function, arguments, named):
        """Call a device function at a site of the kernel."""
        before = self.site, self.path
        self.site, self.path = site, self.path.below(site)
        result = self.call(function, arguments, named)
        self.site, self.path = before
        return result

    def operated(self, kind, count, value):
        """A value, for which each lane of the mask has executed `count` operations of a kind."""
        self.tracer.flops(kind, count * (self.size if self.mask is None else self.chosen.size))
        return value

    def collective(self, kind, flops=0):
        """Called when warps have met in an instruction. flops: of each, on tensor cores."""
        if self.tracer is not None:
            self.tracer.collective(self, kind, flops)

    @property
    def warps_here(self):
        """The numbers of the warps that have lanes in the mask."""
        return np.unique(self.warp_of if self.mask is None else self.warp_of[self.mask])

    @property
    def numbers(self):
        """The numbers of the lanes of the mask, counted over the vector's blocks."""
        return (self.serial if self.mask is None else self.serial[self.chosen]) - self.first

    @property
    def chosen(self):
        """The numbers of the lanes of the mask; None for all."""
        mask = self.mask
        if mask is None:
            return None
        if self.kept[0] is not mask:
            self.kept = mask, mask.nonzero()[0]
        return self.kept[1]

    def put(self, old, new):
        """A variable after the assignment of `new` in the lanes of the mask."""
        mask = self.mask
        if mask is None or old is None or old is new:
            return new
        if isinstance(new, tuple) != isinstance(old, tuple):
            raise NotInLanes("a variable that holds the factors of a product in some threads only")
        if isinstance(new, tuple):
            if len(old) != len(new):
                raise NotInLanes("a variable that is a tuple in some threads only")
            made = [self.put(*pair) for pair in zip(old, new)]
            return type(new)._make(made) if hasattr(new, "_make") else tuple(made)
        if isinstance(new, LaneArray):
            if not isinstance(old, LaneArray) or old.flat is not new.flat or old.view != new.view:
                raise NotInLanes("a variable that is another array in other threads")
            return new.like(new.shape, new.strides, np.where(mask, new.offset, old.offset))
        if type(new) is not VECTOR and type(old) is type(new) and new == old and new != 0:
            return new
        if kind_of(old) is not kind_of(new):
            raise NotInLanes("a variable that has another type in a divergent branch")
        return np.where(mask, *(low(value) if type(value) is int else value for value in (new, old)))

    # Expressions

    def and_(self, left, right):
        """left and right()."""
        return self.both_of(left, right, True)

    def or_(self, left, right):
        """left or right()."""
        return self.both_of(left, right, False)

    def both_of(self, left, right, wanted):
        """`left and right()` if `wanted`, else `left or right()`; lanes that left decides do not evaluate right."""
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
        if some(outside if self.mask is None else outside & self.mask):
            raise Fault("an item of a tuple that does not exist")
        if not all(isinstance(item, (VECTOR, int, float, np.generic)) for item in items):
            raise NotInLanes("an item of a tuple of arrays that differs between threads")
        return np.stack(np.broadcast_arrays(*items, self.lane)[:-1])[np.where(outside, 0, index), self.lane]

    def checked(self, cast, value):
        """cast(value) of integers; sends the launch to the threads if a lane's number changes, because it may become an index."""
        found = cast(value)
        changed = found != value
        if changed if type(changed) is not VECTOR else some(changed if self.mask is None else changed & self.mask):
            raise Fault("an integer wraps in a cast")
        return found

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

    # Barriers

    def syncthreads(self):
        """A barrier of each block: all of its threads that have not returned from the kernel must be here."""
        if self.mask is None:
            self.pass_barrier(self.count)
            return
        # Under a detector of such barriers, threads that have returned count as missing too.
        missing = ~self.mask if self.dead is False or self.watch is not None else ~(self.mask | self.dead)
        if self.count > 1:
            here = self.mask.reshape(self.count, self.threads).any(1)
            missing &= here[self.block_of]
        if some(missing):
            raise Fault("some threads do not reach a barrier")
        self.pass_barrier(int(self.mask.reshape(self.count, self.threads).any(1).sum()))

    def pass_barrier(self, blocks):
        """Report a barrier of this number of blocks."""
        if self.watch is not None:
            self.watch.barrier(self)
        if self.tracer is not None:
            self.tracer.barrier(blocks)

    def after_syncwarp(self):
        """Called behind a barrier of whole warps."""
        if self.watch is not None:
            self.clock = self.clock + (1 if self.mask is None else self.mask.astype(np.int64))
            self.watch.syncwarp(self)

    def fence(self):
        """A fence; nothing else is needed, because every store is visible at once."""
        if self.watch is not None:
            self.watch.fence(self)

    def wait_for_predecessors(self):
        """The lanes of the mask have waited for earlier launches."""
        if self.mask is None:
            self.waited = True
        elif self.waited is not True:
            self.waited = self.mask | self.waited


def kind_of(value):
    """The element type of a variable's value, to compare by `is`."""
    if type(value) is VECTOR:
        return int if value.dtype == np.int64 else value.dtype.type
    return np.bool_ if type(value) is bool else type(value)


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
