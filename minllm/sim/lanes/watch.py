"""Detectors in the lanes: vector checks that send a launch to the threads at the first sight of what their detectors may report.

Unwritten memory has marks of one byte per byte, as in the threads, which are read and set as words of an access's size. Accesses are logged
and compared (accesses.py): those to shared memory at each barrier, those to global memory when the launch ends.
"""

import numpy as np

from minllm.errors import SimulationError
from minllm.sim.detectors import EarlyReads, detectors
from minllm.sim.detectors.global_races import Access, History
from minllm.sim.detectors.grid_order import THREAD_BITS, GridOrder
from minllm.sim.detectors.streams import TouchedBytes
from minllm.sim.detectors.unwritten import UnwrittenReads
from minllm.sim.lanes.accesses import ATOMIC, NAMES, READ, WRITE, Log, may_race, suspicious
from minllm.sim.lanes.faults import BlocksMeet, Fault, NotInLanes
from minllm.sim.lanes.masks import VECTOR, every, some
from minllm.sim.monitor import Launch
from minllm.sim.thread import WARP_SIZE

FULL_MASK = 0xFFFFFFFF
MOST_LOGGED = 8_000_000  # accesses between two comparisons
MARKED = {size: int.from_bytes(b"\1" * size, "little") for size in (1, 2, 4, 8)}


class Watch:
    """The detectors of one launch."""

    def __init__(self, launch, how, function):
        self.launch, self.logs, self.order, self.position = launch, {}, GridOrder(), 0
        self.threads = launch.block.x * launch.block.y * launch.block.z
        self.warps = -(-self.threads // WARP_SIZE)
        own = [one for one in detectors() if isinstance(one, (UnwrittenReads, EarlyReads, TouchedBytes))]
        self.unwritten = next(one for one in own if isinstance(one, UnwrittenReads))
        self.early = next(one for one in own if isinstance(one, EarlyReads))
        self.touched = next((one for one in own if isinstance(one, TouchedBytes)), None)
        arrays = {number: root for number, (_, _, root) in enumerate(launch.roots)}
        for one in own:
            one.start(Launch(how.kernel, function, tuple(how.grid), tuple(how.block), how.shared_bytes, arrays))
        for root in arrays.values():
            marks = root.notes.get("written")  # none for an array without elements
            root.marks = None if marks is None else np.frombuffer(marks, np.uint8)

    # Accesses. at: for the lanes of the mask, the number of an element of `size` bytes from the memory's start

    def access(self, lanes, root, at, size, kind, value=None):
        """An access to global or shared memory."""
        chosen = lanes.chosen
        if type(at) is not VECTOR:
            at = np.full(lanes.size if chosen is None else chosen.size, at)
        self.check_written(root, at, size, kind)
        if root.space == "global":
            waited = lanes.waited if type(lanes.waited) is bool else lanes.waited if chosen is None else lanes.waited[chosen]
            self.global_access(root, at, size, kind, value, waited, *self.whereabouts(lanes))
        elif root.space == "shared":
            self.shared_access(lanes, root, at, size, kind)
        if kind != READ and root.marks is not None:
            root.marks.view(f"u{size}")[at] = MARKED[size]

    def check_written(self, root, at, size, kind):
        """Raise Fault if an access reads bytes that nobody wrote."""
        if kind != WRITE and root.marks is not None:
            marks = root.marks.view(f"u{size}")[at] if root.marks.size % size == 0 else self.refuse()
            if some(marks != MARKED[size]):
                raise Fault("a read of memory that nobody wrote")

    def refuse(self):
        """Raise NotInLanes for an access to a word that ends behind its array."""
        raise NotInLanes("words that end behind an array")

    def global_access(self, root, at, size, kind, value, waited, who, epoch, clock):
        """An access to global memory by the threads `who`, numbers in the grid. waited: whether they have waited for earlier launches."""
        if self.touched is not None:
            self.touched.mark(root, at, size, kind)
        if kind == READ:
            if root in self.early.early and not np.all(waited):
                raise Fault("a read of an earlier launch's results")
            root.range.loaded = True
            if root.range.name not in self.launch.stored:
                return
        elif root.range.name not in self.launch.stored:
            self.launch.stored.add(root.range.name)
            if root.range.loaded:
                raise BlocksMeet
        if kind != READ:
            root.notes["changed"] = True
        log, start = self.logs.setdefault(root.range, Log()), at * size + root.shift
        if kind == ATOMIC:
            for thread, place in zip(who.tolist(), start.tolist()):
                self.order.atomic(self.serial(thread), (root.range, place), self.position, None)
        value = comparable(value) if kind == WRITE else None
        log.add(start, size, who, kind, epoch, clock, value, self.position)
        self.position += 1
        if log.count > MOST_LOGGED:
            raise NotInLanes("too many accesses to be compared")

    def shared_access(self, lanes, root, at, size, kind):
        """Log an access to shared memory."""
        if lanes.flying and some(root.flights[at * size >> 4]):
            raise Fault("an access to memory that a cp.async writes")
        who, _, clock = self.whereabouts(lanes)
        lanes.log.add(at * size, size, who - lanes.first, kind, 0, clock)
        if lanes.log.count > MOST_LOGGED:
            raise NotInLanes("too many accesses between two barriers")

    def whereabouts(self, lanes):
        """(number in the grid, epoch, clock) of the lanes of the mask."""
        chosen = lanes.chosen
        if chosen is None:
            return lanes.serial, lanes.epoch, lanes.clock
        return lanes.serial[chosen], *(one[chosen] if type(one) is VECTOR else one for one in (lanes.epoch, lanes.clock))

    def local_read(self, lanes, array, at):
        """A read of local memory."""
        marks = array.root.marks
        if marks is None:
            return
        found = marks[at] if type(at) is not VECTOR else marks[at, lanes.lane]
        if not every(found if lanes.mask is None else found | ~lanes.mask):
            raise Fault("a read of local memory that nobody wrote")

    def local_written(self, lanes, array, at):
        """A write to local memory."""
        marks, chosen = array.root.marks, lanes.chosen
        if marks is None:
            return
        if type(at) is not VECTOR:
            marks[at] = True if chosen is None else marks[at] | lanes.mask
        else:
            marks[(at, lanes.lane) if chosen is None else (at[chosen], chosen)] = True

    def new_local(self, root):
        """A local array has been made: nothing in it is written."""
        root.marks = np.zeros(root.flat.shape, bool)

    def new_shared(self, root):
        """A block's shared memory has been made: nothing in it is written."""
        root.marks, root.flights = np.zeros(root.flat.size, np.uint8), np.zeros(-(-root.flat.size // 16), bool)

    def are_ordered(self, log):
        """Whether the order of the grid's threads, with its fences and atomics, orders all accesses that share an element."""
        units, threads, kinds, _, _, values, positions = log.columns()
        chosen = suspicious(units, threads, kinds)
        chosen = chosen[np.lexsort((threads[chosen], positions[chosen], units[chosen]))]
        self.order.gpus = [None] * (1 + int(threads.max()) // self.threads)
        last = None
        for unit, thread, kind, value, position in zip(*(one[chosen].tolist() for one in (units, threads, kinds, values, positions))):
            if unit != last:
                history, last = History(self.order), unit
            if history.add(Access(position, None, unit, 1, NAMES[kind], self.serial(thread), None, 0, value)) is not None:
                return False
        return True

    # Barriers

    def blocks_of(self, lanes):
        """The numbers in the grid of the blocks that have lanes in the mask."""
        here = np.ones(lanes.count, bool) if lanes.mask is None else lanes.mask.reshape(lanes.count, self.threads).any(1)
        return (np.flatnonzero(here) + lanes.first // self.threads).tolist()

    def serial(self, thread):
        """The serial number in self.order of a thread."""
        return (thread // self.threads << THREAD_BITS) + thread % self.threads

    def fence(self, lanes):
        """A fence of the lanes of the mask."""
        for block in self.blocks_of(lanes):
            self.order.fence(block << THREAD_BITS, self.position, False)

    def syncwarp(self, lanes):
        """A barrier of whole warps."""
        warps = range(lanes.warps) if lanes.mask is None else np.unique(lanes.warp_of[lanes.mask]).tolist()
        for warp in warps:
            positions, masks = self.order.warps[lanes.first // self.threads + warp // self.warps, warp % self.warps]
            positions.append(self.position)
            masks.append(FULL_MASK)

    def barrier(self, lanes):
        """A barrier of the blocks that have lanes in the mask."""
        for block in self.blocks_of(lanes):
            self.order.barriers[block].append(self.position)
        here = lanes.mask is None or every(lanes.mask)
        self.compare_shared(lanes)
        if here:
            lanes.log, lanes.epoch = Log(), lanes.epoch + 1
        else:
            blocks = lanes.mask.reshape(lanes.count, self.threads)[:, 0]
            lanes.epoch = lanes.epoch + blocks[lanes.block_of]
            kept = Log()
            for entry in lanes.log.entries:
                kept.add(*part_of(entry, ~blocks[entry[2] // self.threads]))
            lanes.log = kept

    def compare_shared(self, lanes):
        """Raise Fault if accesses to shared memory since the last barrier may race."""
        if lanes.log.count and may_race(lanes.log, self.block_of, self.warp_of):
            raise Fault("a race on shared memory")

    def block_of(self, thread):
        """The numbers of the blocks of threads."""
        return thread // self.threads

    def warp_of(self, thread):
        """The numbers of the warps of threads, counted over all blocks."""
        return thread // self.threads * self.warps + thread % self.threads // WARP_SIZE

    def end_vector(self, lanes):
        """All lanes have ended."""
        self.compare_shared(lanes)

    def end(self):
        """All blocks have ended."""
        for log in self.logs.values():
            if log.count and may_race(log, self.block_of, self.warp_of) and not self.are_ordered(log):
                raise Fault("a race on global memory")
        try:
            self.unwritten.end()
        except SimulationError as error:
            raise Fault(str(error)) from None
        self.early.end()


def part_of(entry, which):
    """The lanes `which` of an entry of a log."""
    start, size, thread, kind, *rest = entry
    return start[which], size, thread[which], kind, *(one[which] if isinstance(one, np.ndarray) else one for one in rest)


def comparable(value):
    """Stored values as float64, NaN for those that are not known to be equal to another; a number for all lanes."""
    if type(value) is VECTOR:
        return value.astype(np.float64) if value.dtype.itemsize <= 4 else np.where(abs(value) < 2**52, value, np.nan).astype(np.float64)
    return float(value) if value is not None and abs(value) < 2**52 else np.nan
